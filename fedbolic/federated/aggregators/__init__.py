"""Updates, which leave clients, and their aggregation into one aggregated update."""
