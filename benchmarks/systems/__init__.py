"""The systems that are measured, each behind one small interface; imported only in its own process."""
