// The entry point of gradring_tests. Filter with --test-case="*ring*", list with --list-test-cases.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
