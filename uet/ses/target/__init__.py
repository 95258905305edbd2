"""The target side of SES: requests are checked, matched and answered (UES 3.4.1)."""
