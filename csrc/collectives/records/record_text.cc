#include "collectives/records/record_text.h"

#include <unistd.h>

#include <iomanip>
#include <utility>

#include "collectives/plan/plan.h"

namespace gradring::collectives {
namespace {

bool has_payload(OpKind op) {
  return op != OpKind::kBarrier && op != OpKind::kSplit;
}

bool is_message(OpKind op) {
  return op == OpKind::kSend || op == OpKind::kRecv;
}

constexpr std::size_t kSpansShown = 64;

}  // namespace

std::string hex_id(std::uint64_t id) {
  return str(std::hex, std::setw(16), std::setfill('0'), id);
}

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "";
}

RecordText::RecordText(RecordHead head, const Failure& failure) : head_(std::move(head)) {
  const TickAnchor now = TickAnchor::read();
  head_.scale.add(now);
  const auto wall = std::chrono::system_clock::now().time_since_epoch();
  json_.open_object()
      .member("format", "gradring-record")
      .member("version", kRecordVersion)
      .member("library", GRADRING_VERSION)
      .member("job", head_.job)
      .member("rank", head_.rank)
      .member("world_size", static_cast<std::int32_t>(head_.addresses.size()))
      .member("host", host_name())
      .member("pid", std::int64_t{::getpid()})
      .member("now", now.nanos)
      .member("wall",
              std::int64_t{std::chrono::duration_cast<std::chrono::nanoseconds>(wall).count()});
  json_.key("addresses").open_array();
  for (const std::string& address : head_.addresses) json_.value(address);
  json_.close_array().key("failure");
  add_failure(failure);
  json_.key("communicators").open_array();
}

void RecordText::add_failure(const Failure& failure) {
  if (!failure) {
    json_.null();
    return;
  }
  json_.open_object()
      .member("kind", name(failure.kind))
      .member("rank", failure.rank)
      .member("text", failure.text)
      .close_object();
}

void RecordText::add(const transport::Group& group, bool is_closed,
                     const std::vector<OperationRecord>& collectives,
                     const std::vector<OperationRecord>& messages) {
  json_.new_line().open_object().member("id", hex_id(group.id)).key("ranks").open_array();
  for (const Rank rank : group.members) json_.value(rank);
  json_.close_array().member("is_closed", is_closed).key("failure");
  add_failure(group.failure());
  json_.key("operations");
  add_operations(collectives);
  json_.key("messages");
  add_operations(messages);
  json_.close_object();
}

void RecordText::add_operations(const std::vector<OperationRecord>& records) {
  json_.open_array();
  for (const OperationRecord& record : records) {
    json_.new_line();
    add_operation(record);
  }
  json_.close_array();
}

void RecordText::add_operation(const OperationRecord& record) {
  const Call& call = record.call;
  json_.open_object();
  if (record.seq != 0) json_.member("seq", record.seq);
  json_.member("op", name(call.op)).member("state", name(record.state));
  if (has_payload(call.op)) json_.member("dtype", name(call.dtype)).member("count", call.count);
  if (reduces(call.op)) json_.member("reduce_op", name(call.reduce_op));
  if (call.root >= 0) json_.member("root", call.root);
  if (call.counts_hash != 0) json_.member("counts", hex_id(call.counts_hash));
  add_time("queued", record.queued);
  add_time("begin", record.begun);
  add_time("end", record.ended);
  if (record.to_send != 0) json_.member("sent", record.sent).member("to_send", record.to_send);
  if (record.to_receive != 0)
    json_.member("received", record.received).member("to_receive", record.to_receive);
  if (record.peer >= 0) json_.member(is_message(call.op) ? "peer" : "awaited", record.peer);
  if (is_message(call.op)) json_.member("tag", record.tag);
  json_.close_object();
}

void RecordText::add_time(std::string_view name, Ticks ticks) {
  if (ticks != 0) json_.member(name, head_.scale.nanos(ticks));
}

std::string RecordText::finish(const std::vector<SpanRecord>& spans) {
  json_.close_array().key("spans").open_array();
  for (std::size_t index = 0; index < spans.size(); ++index) {
    const SpanRecord& span = spans[index];
    if (span.ended != 0 && index + kSpansShown < spans.size()) continue;
    json_.new_line().open_object().member("name", span.name).member("thread", span.thread);
    add_time("begin", span.begun);
    add_time("end", span.ended);
    json_.close_object();
  }
  json_.close_array().close_object();
  return json_.take();
}

}  // namespace gradring::collectives
