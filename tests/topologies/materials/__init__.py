"""Tests of bills of materials and price lists."""
