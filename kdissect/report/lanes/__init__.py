"""Lanes of the page's time axis: who was there and who was not, deliveries of records, transactions."""
