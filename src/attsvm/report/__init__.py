"""Reports: jinja2 templates filled with sentences, numbers and figures, as one self-contained HTML file each."""
