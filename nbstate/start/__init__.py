"""How ranks come to life. Each way is one module; all hand the same `Setup` to `nbstate.rank`."""
