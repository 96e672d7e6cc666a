"""The console: pages for a browser, and what they show. web/ has their sources; static/ is built of them."""
