"""The cohort of an exchange, the filter and the aggregation of its updates, its second attempt."""
