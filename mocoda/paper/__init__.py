"""a preset -> a table of the paper, measured: the whole method as one program, and what it draws and writes."""
