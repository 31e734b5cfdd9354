"""The dataset report and the review page, and the web server behind the pages."""
