"""What reads run folders: pages, comparisons, a packet's way, reports of suites."""
