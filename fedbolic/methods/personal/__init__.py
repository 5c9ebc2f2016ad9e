"""Methods whose clients keep a model of their own, or a part of one."""
