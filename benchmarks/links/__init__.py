"""Link prediction."""
