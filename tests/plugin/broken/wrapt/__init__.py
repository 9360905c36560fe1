raise ImportError("deliberately broken")
