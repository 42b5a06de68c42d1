#include "support/ps/shard_rig.h"

#include <new>
#include <stdexcept>

namespace gradring::testing {

using wire::PsType;

void MemoryJournal::append(const wire::PsHeader& header, std::span<const std::byte> payload,
                           std::uint32_t client, std::uint64_t incarnation) {
  if (payload.size() > most_bytes) throw std::bad_alloc();
  JournalRecord record{header, {}, client, incarnation};
  ps::put_bytes(record.payload, payload);
  records.push_back(std::move(record));
}

ps::ShardOptions ShardRig::options_of(std::uint32_t shard, std::uint32_t shards,
                                      std::uint64_t incarnation) {
  return {.shard = shard,
          .shards = shards,
          .incarnation = incarnation,
          .client_grace = Millis{1000},
          .host_key = "",
          .unix_name = ""};
}

ShardRig::ShardRig(std::uint32_t shard, std::uint32_t shards, std::uint64_t incarnation)
    : ShardRig(options_of(shard, shards, incarnation)) {}

ShardRig::ShardRig(const ps::ShardOptions& options) : shard_(options, journal) {}

Guest ShardRig::enter(std::uint32_t client, std::uint64_t incarnation) {
  Guest guest;
  guest.connection = ++last_connection_;
  guest.client = client;
  shard_.connected(guest.connection, now);
  ps::Frame hello;
  hello.payload = hello_payload(client, incarnation);
  const auto answers = send_frame(guest, std::move(hello));
  if (answers.size() != 1) throw std::logic_error("a hello has one answer");
  if (error_of(answers[0].frame) != ErrorKind::kNone)
    Failure{error_of(answers[0].frame), -1, text_of(answers[0].frame)}.raise();
  guest.seq = answers[0].frame.header.b;
  return guest;
}

ps::Frame ShardRig::frame_of(Guest& guest, const Request& request) {
  ps::Frame frame;
  frame.header = request.header;
  if (wire::is_numbered(request.header.type)) {
    ++guest.seq;
    ps::put(frame.payload, guest.tail.empty() ? wire::Tail{guest.seq} : guest.tail);
    guest.tail.clear();
  }
  frame.header.seq = guest.seq;
  ps::put_bytes(frame.payload, request.rest);
  return frame;
}

std::vector<ps::Answer> ShardRig::send(Guest& guest, const Request& request) {
  return send_frame(guest, frame_of(guest, request));
}

std::vector<ps::Answer> ShardRig::send_frame(const Guest& guest, ps::Frame frame) {
  frame.header.request = ++last_request_;
  frame.header.payload_bytes = frame.payload.size();
  std::vector<ps::Answer> answers;
  shard_.receive(guest.connection, std::move(frame), now, answers);
  return answers;
}

ps::Frame ShardRig::ask(Guest& guest, const Request& request) {
  auto answers = send(guest, request);
  if (answers.size() != 1 || answers[0].to != guest.connection)
    throw std::logic_error(str(name(request.header.type), ": ", answers.size(), " answers"));
  return arrived(std::move(answers[0]));
}

std::vector<ps::Answer> ShardRig::tick_after(Millis wait) {
  now += wait;
  std::vector<ps::Answer> answers;
  shard_.tick(now, answers);
  return answers;
}

std::vector<std::byte> ShardRig::snapshot() {
  if (!saver_) saver_ = enter(999);
  const std::uint64_t cut_id = 1000 + ++last_cut_;
  for (const Request& step : {freeze(cut_id, Millis{1000}), cut(cut_id, "")}) {
    const ps::Frame answer = ask(*saver_, step);
    if (answer.header.type == PsType::kError) throw std::logic_error(text_of(answer));
  }
  ps::SnapshotBytes bytes;
  while (shard_.next_snapshot_piece(cut_id, 64, bytes)) {
  }
  shard_.end_snapshot(cut_id);
  std::vector<ps::Answer> answers;
  for (const ps::Job& done : shard_.take_jobs()) shard_.finish_job(done.cut, "", {}, answers);
  journal.records.pop_back();  // The mark of the cut.
  return {bytes.view().begin(), bytes.view().end()};
}

void ShardRig::load(const std::vector<std::vector<std::byte>>& snapshots, bool is_recovery) {
  shard_.begin_load();
  for (const auto& bytes : snapshots) shard_.load_piece(bytes);
  shard_.commit_load(is_recovery);
}

void ShardRig::replay(const std::vector<JournalRecord>& records) {
  for (const JournalRecord& record : records)
    shard_.replay(record.header, record.payload, record.client, record.incarnation);
}

Guest enter_with_table(ShardRig& rig, std::uint32_t client, std::uint64_t incarnation) {
  Guest guest = rig.enter(client, incarnation);
  const ps::Frame answer = rig.ask(guest, make_table(sum_table("t", kSumsDim)));
  if (answer.header.type != wire::PsType::kDone) throw InternalError(text_of(answer));
  return guest;
}

Values pulled(ShardRig& rig, Guest& guest, const Ids& ids) {
  const ps::Frame answer = rig.ask(guest, pull("t", ids));
  if (answer.header.type != wire::PsType::kRows) throw InternalError(text_of(answer));
  return rows_of(answer.header, answer.payload, kSumsDim).rows;
}

std::string text_of(const ps::Frame& frame) {
  return ps::decode_text(frame.payload);
}

ErrorKind error_of(const ps::Frame& frame) {
  return frame.header.type == PsType::kError ? static_cast<ErrorKind>(frame.header.a)
                                             : ErrorKind::kNone;
}

}  // namespace gradring::testing
