"""The tests of the BMWG draft on AI inference fabrics, one file for each subject: a library."""
