// The flight recorder's format: one JSON object a rank (docs/flight_recorder.md). Used by
// FlightRecorder, on any thread.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/record.h"
#include "base/spans.h"
#include "transport/membership/group.h"

namespace gradring::collectives {

// Goes up when a reader of the one before could misunderstand the text.
inline constexpr int kRecordVersion = 1;

std::string hex_id(std::uint64_t id);  // Of a communicator.
std::string host_name();

struct RecordHead {
  std::string job;
  Rank rank = 0;
  std::vector<std::string> addresses;  // By world rank.
  TickScale scale;
};

class RecordText {
 public:
  // `failure` may be none.
  RecordText(RecordHead head, const Failure& failure);
  void add(const transport::Group& group, bool is_closed,
           const std::vector<OperationRecord>& collectives,
           const std::vector<OperationRecord>& messages);
  // The last ones, and all that go on.
  std::string finish(const std::vector<SpanRecord>& spans);

 private:
  void add_failure(const Failure& failure);
  void add_operations(const std::vector<OperationRecord>& records);
  void add_operation(const OperationRecord& record);
  void add_time(std::string_view name, Ticks ticks);

  RecordHead head_;
  JsonWriter json_;
};

}  // namespace gradring::collectives
