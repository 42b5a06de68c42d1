// A rank's trace: operations, messages and spans as Chrome trace events, which Perfetto and
// chrome://tracing show, with what is needed to put several ranks' traces on one clock
// (docs/flight_recorder.md). Used by FlightRecorder when its last communicator closes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/record.h"
#include "base/spans.h"
#include "collectives/records/record_text.h"
#include "transport/membership/inspection.h"

namespace gradring::collectives {

inline constexpr int kTraceVersion = 1;

// How far rank 0's clock is ahead of ours, at a time of ours.
struct ClockReading {
  std::int64_t at = 0;
  transport::ClockOffset clock;
};

class TraceText {
 public:
  explicit TraceText(const RecordHead& head);
  void add(const transport::Group& group, const OperationRing& collectives,
           const OperationRing& messages);
  void add(const std::vector<SpanRecord>& spans);
  std::string finish(const std::vector<ClockReading>& clock);

 private:
  void name_lane(std::uint64_t lane, std::string_view name);
  void begin_event(std::string_view phase, std::string_view name, std::uint64_t lane, Ticks at);
  void add_collective(const OperationRecord& record, const std::string& group, std::uint64_t lane);
  void add_message(const OperationRecord& record, std::uint64_t lane);
  void add_arguments(const OperationRecord& record);
  std::int64_t nanos(Ticks ticks) const { return head_.scale.nanos(ticks); }

  RecordHead head_;
  JsonWriter json_;
  std::uint64_t lanes_ = 0;     // Numbers below those of the system's threads.
  std::uint64_t messages_ = 0;  // Ids.
  std::uint64_t lost_ = 0;      // Operations that found no room.
};

}  // namespace gradring::collectives
