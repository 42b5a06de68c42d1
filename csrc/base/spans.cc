#include "base/spans.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

namespace gradring {
namespace {

constexpr std::size_t kSpansKept = 1 << 15;
// Names are meant to be few; one more that is made up on the fly counts as the last.
constexpr std::size_t kNames = 1024;

std::uint64_t thread_number() {
  thread_local const auto number = static_cast<std::uint64_t>(::syscall(SYS_gettid));
  return number;
}

}  // namespace

Spans& Spans::of_process() {
  static Spans spans;
  return spans;
}

Spans::Spans() : ring_(kSpansKept, false) {}

OperationRing::Slot* Spans::begin(const std::string& name) {
  Call call;
  call.count = names_.with([&](std::vector<std::string>& names) -> std::uint64_t {
    const auto found = std::find(names.begin(), names.end(), name);
    if (found != names.end()) return static_cast<std::uint64_t>(found - names.begin());
    if (names.size() < kNames) names.push_back(name);
    return names.size() - 1;
  });
  const std::lock_guard lock(mutex_);
  OperationRing::Slot* slot = ring_.begin(call, thread_number());
  if (slot != nullptr) slot->stamp();
  return slot;
}

void Spans::end(OperationRing::Slot* slot) {
  const std::lock_guard lock(mutex_);
  ring_.end(slot, OperationState::kFinished);
}

std::vector<SpanRecord> Spans::read() const {
  const auto names = names_.with([](const auto& kept) { return kept; });
  std::vector<SpanRecord> spans;
  for (const OperationRecord& record : ring_.read())
    if (record.call.count < names.size())
      spans.push_back({names[record.call.count], record.seq, record.begun, record.ended});
  return spans;
}

}  // namespace gradring
