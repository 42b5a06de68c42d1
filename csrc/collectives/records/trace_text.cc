#include "collectives/records/trace_text.h"

#include <set>

namespace gradring::collectives {

TraceText::TraceText(const RecordHead& head) : head_(head) {
  head_.scale.add(TickAnchor::read());
  json_.open_object().member("displayTimeUnit", "ns").key("traceEvents").open_array();
  json_.open_object().member("name", "process_name").member("ph", "M").member("pid", head_.rank);
  json_.key("args").open_object().member("name", str("rank ", head_.rank, " on ", host_name()));
  json_.close_object().close_object();
}

void TraceText::name_lane(std::uint64_t lane, std::string_view name) {
  json_.new_line().open_object().member("name", "thread_name").member("ph", "M");
  json_.member("pid", head_.rank).member("tid", lane);
  json_.key("args").open_object().member("name", name).close_object().close_object();
}

void TraceText::begin_event(std::string_view phase, std::string_view name, std::uint64_t lane,
                            Ticks at) {
  json_.new_line().open_object().member("name", name).member("ph", phase);
  json_.member("pid", head_.rank).member("tid", lane).key("ts").micros(nanos(at));
}

void TraceText::add(const transport::Group& group, const OperationRing& collectives,
                    const OperationRing& messages) {
  const std::string id = hex_id(group.id);
  const std::string title = str(group.members.size(), " ranks");
  const auto operations = collectives.read();
  lost_ += collectives.begun() - operations.size();
  if (!operations.empty()) name_lane(++lanes_, str("collectives of ", title));
  for (const OperationRecord& record : operations)
    if (record.ended != 0) add_collective(record, id, lanes_);
  const auto transfers = messages.read();
  lost_ += messages.begun() - transfers.size();
  if (!transfers.empty()) name_lane(++lanes_, str("messages of ", title));
  for (const OperationRecord& record : transfers)
    if (record.ended != 0) add_message(record, lanes_);
}

void TraceText::add_collective(const OperationRecord& record, const std::string& group,
                               std::uint64_t lane) {
  begin_event("X", name(record.call.op), lane, record.begun);
  json_.member("cat", "collective").key("dur").micros(nanos(record.ended) - nanos(record.begun));
  json_.key("args").open_object().member("seq", record.seq).member("communicator", group);
  add_arguments(record);
  json_.close_object().close_object();
}

// They overlap, so each is a pair of events with an id instead of a slice of its lane.
void TraceText::add_message(const OperationRecord& record, std::uint64_t lane) {
  const std::string id = str(head_.rank, ".", ++messages_);
  begin_event("b", name(record.call.op), lane, record.begun);
  json_.member("cat", "message").member("id", id).key("args").open_object();
  json_.member("peer", record.peer).member("tag", record.tag);
  add_arguments(record);
  json_.close_object().close_object();
  begin_event("e", name(record.call.op), lane, record.ended);
  json_.member("cat", "message").member("id", id).close_object();
}

void TraceText::add_arguments(const OperationRecord& record) {
  const Call& call = record.call;
  if (call.count != 0) json_.member("dtype", name(call.dtype)).member("count", call.count);
  if (record.queued != 0) json_.key("queued_us").micros(nanos(record.begun) - nanos(record.queued));
  if (record.to_send != 0) json_.member("sent", record.sent);
  if (record.to_receive != 0) json_.member("received", record.received);
  if (record.state == OperationState::kFailed) json_.member("failed", true);
}

void TraceText::add(const std::vector<SpanRecord>& spans) {
  std::set<std::uint64_t> threads;
  for (const SpanRecord& span : spans) {
    if (threads.insert(span.thread).second) name_lane(span.thread, str("thread ", span.thread));
    // One that goes on ends here, or it would not be shown.
    const Ticks end = span.ended != 0 ? span.ended : ticks_now();
    begin_event("X", span.name, span.thread, span.begun);
    json_.member("cat", "span").key("dur").micros(nanos(end) - nanos(span.begun));
    json_.close_object();
  }
}

std::string TraceText::finish(const std::vector<ClockReading>& clock) {
  json_.close_array().key("otherData").open_object();
  json_.member("format", "gradring-trace").member("version", kTraceVersion);
  json_.member("job", head_.job).member("rank", head_.rank);
  json_.member("world_size", static_cast<std::int32_t>(head_.addresses.size()));
  json_.member("lost", lost_).key("clock").open_array();
  for (const ClockReading& reading : clock) {
    json_.open_object().member("at", reading.at).member("offset", reading.clock.offset);
    json_.member("error", reading.clock.error).close_object();
  }
  json_.close_array().close_object().close_object();
  return json_.take();
}

}  // namespace gradring::collectives
