"""The initiator side of SES: requests become messages, responses become completions (UES 3.4)."""
