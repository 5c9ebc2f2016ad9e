"""The cohort of an exchange, the filter of its updates, and its second attempt."""
