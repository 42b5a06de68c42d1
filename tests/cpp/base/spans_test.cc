// Spans of user code: nested, on several threads, seen while they go on.
#include "base/spans.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <thread>

#include "base/tallies.h"

namespace gradring::testing::spans_test {
namespace {

std::vector<SpanRecord> named(const std::string& name) {
  std::vector<SpanRecord> spans = Spans::of_process().read();
  std::erase_if(spans, [&](const SpanRecord& span) { return span.name != name; });
  return spans;
}

TEST_CASE("a span is seen while it goes on, and with its end afterwards") {
  Spans& spans = Spans::of_process();
  auto* outer = spans.begin("outer of a test");
  auto* inner = spans.begin("inner of a test");
  REQUIRE(named("outer of a test").size() == 1);
  CHECK(named("outer of a test")[0].begun > 0);
  CHECK(named("outer of a test")[0].ended == 0);
  spans.end(inner);
  spans.end(outer);
  const SpanRecord first = named("outer of a test")[0];
  const SpanRecord second = named("inner of a test")[0];
  CHECK(first.begun <= second.begun);
  CHECK(second.ended <= first.ended);
  CHECK(first.thread == second.thread);
}

TEST_CASE("a span is no operation, and metrics do not count it as one") {
  const auto count_ended = [] {
    std::uint64_t ended = 0;
    for (const auto& tally : OperationTallies::of_process().read()) ended += tally.operations;
    return ended;
  };
  count_ended();  // From here on.
  const std::uint64_t before = count_ended();
  Spans::of_process().end(Spans::of_process().begin("not counted in a test"));
  CHECK(count_ended() == before);
}

TEST_CASE("threads have spans of their own, written at the same time") {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([] {
      for (int turn = 0; turn < 500; ++turn)
        Spans::of_process().end(Spans::of_process().begin("of a thread of a test"));
    });
  }
  while (named("of a thread of a test").size() < 100) std::this_thread::yield();
  for (std::thread& thread : threads) thread.join();
  const auto spans = named("of a thread of a test");
  CHECK(spans.size() == 2000);
  std::vector<std::uint64_t> numbers;
  for (const SpanRecord& span : spans) numbers.push_back(span.thread);
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  CHECK(numbers.size() == 4);
}

}  // namespace
}  // namespace gradring::testing::spans_test
