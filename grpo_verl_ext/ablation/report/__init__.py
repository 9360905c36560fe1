"""Show what a grid has found: lines, tables, files, figures and a page."""
