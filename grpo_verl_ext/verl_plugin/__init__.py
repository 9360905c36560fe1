"""The only part of the package that imports verl: registration, adapters, presets' machinery, CPU platform."""
