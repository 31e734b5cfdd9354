"""Templates, style sheet, web server and request checks that all pages share."""
