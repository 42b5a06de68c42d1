#include "sim/ps/server.h"

#include <algorithm>

namespace gradring::sim {

using wire::PsType;

void PsDisk::sync() {
  for (auto& record : unwritten_.records) log.push_back(std::move(record));
  unwritten_.records.clear();
}

void PsDisk::crash(Dice& dice) {
  unwritten_.records.resize(dice.below(unwritten_.records.size() + 1));
  sync();
}

bool PsDisk::has_given_up(std::uint32_t client) const {
  const auto is_it = [&](const auto& record) {
    return record.header.type == PsType::kLeave && record.header.seq == 0 &&
           record.client == client;
  };
  return std::any_of(log.begin(), log.end(), is_it) ||
         std::any_of(unwritten_.records.begin(), unwritten_.records.end(), is_it);
}

std::size_t PsDisk::position_of(std::uint64_t cut) const {
  const auto found = std::find_if(log.begin(), log.end(), [&](const auto& record) {
    return record.header.type == PsType::kCut && record.header.a == cut;
  });
  return static_cast<std::size_t>(found - log.begin());
}

PsServer::PsServer(const PsScenario& scenario, std::uint32_t index)
    : scenario_(scenario),
      index_(index),
      dice_(scenario.seed * 31 + index),
      disks_(scenario.threads) {}

ps::ShardOptions PsServer::options_of(std::uint32_t shard) const {
  return {.shard = shard,
          .shards = scenario_.shards(),
          .incarnation = incarnation_,
          .client_grace = scenario_.client_grace,
          .host_key = "host",
          .unix_name = "",
          .held_bytes = scenario_.flight_bytes,
          // So little that answers are kept back now and then.
          .answer_bytes = scenario_.flight_bytes / 16};
}

std::unique_ptr<ps::Shard> PsServer::blank(std::uint32_t shard, ps::Journal& journal) const {
  return std::make_unique<ps::Shard>(options_of(shard), journal);
}

void PsServer::start() {
  ++incarnation_;
  is_doomed_ = false;
  for (std::uint32_t thread = 0; thread < scenario_.threads; ++thread) {
    PsDisk& disk = disks_[thread];
    if (!scenario_.has_log) {
      disk.log.clear();
      disk.base.reset();
    }
    Living living;
    living.shard = blank(first_shard() + thread, disk);
    std::size_t from = 0;
    if (disk.base) {
      living.shard->begin_load();
      living.shard->load_piece(disk.base->bytes);
      living.shard->commit_load(true);
      from = disk.base->from;
    }
    for (std::size_t at = from; at < disk.log.size(); ++at) {
      const auto& record = disk.log[at];
      living.shard->replay(record.header, record.payload, record.client, record.incarnation);
    }
    disk.forget_unwritten();  // A replay appends what is there already.
    shards_.push_back(std::move(living));
  }
}

void PsServer::kill() {
  shards_.clear();
  for (PsDisk& disk : disks_) disk.crash(dice_);
}

void PsServer::accept(std::uint32_t shard, std::unique_ptr<transport::MemoryLink> link, Time now) {
  Living& living = shards_[shard - first_shard()];
  living.guests[++last_connection_].link = std::move(link);
  living.shard->connected(last_connection_, now);
}

bool PsServer::step(Time now) {
  const std::size_t doomed = is_doomed_ ? dice_.below(shards_.size()) : shards_.size();
  bool moved = false;
  for (std::size_t at = 0; at < shards_.size(); ++at) {
    moved |= turn(at, now);
    if (at != doomed) continue;
    kill();
    return true;
  }
  return moved;
}

bool PsServer::turn(std::size_t at, Time now) {
  Living& living = shards_[at];
  bool moved = false;
  if (now >= living.shard->next_tick()) living.shard->tick(now, living.answers);
  for (auto& [connection, guest] : living.guests)
    moved |= read_from(living, connection, guest, now);
  // Killed here it has done what it has not written; killed further down nobody was told of it.
  if (is_doomed_ && dice_.percent(40)) return true;
  disks_[at].sync();
  for (const ps::Job& job : living.shard->take_jobs()) {
    living.writing = job.cut;
    living.pieces.cut_to(0);
  }
  moved |= write_checkpoint(at);
  if (is_doomed_ && dice_.percent(50)) return true;
  post_answers(living);
  for (auto& [connection, guest] : living.guests)
    if (!guest.out.empty()) moved |= write_to(guest);
  for (auto entry = living.guests.begin(); entry != living.guests.end();) {
    if (!entry->second.is_gone) {
      ++entry;
      continue;
    }
    living.shard->disconnected(entry->first, now);
    entry = living.guests.erase(entry);
    moved = true;
  }
  return moved;
}

bool PsServer::read_from(Living& living, ps::Connection connection, Guest& guest, Time now) {
  bool moved = guest.out.empty() && living.shard->has_more(connection);
  if (moved) living.shard->go_on(connection, now, living.answers);
  for (std::uint64_t reads = 1 + dice_.below(12); reads > 0; --reads) {
    const bool may_be_control =
        !guest.reader.has_header() || ps::is_control(guest.reader.header().type);
    if (guest.is_gone || !(living.shard->takes_from(connection) || may_be_control)) return moved;
    try {
      switch (guest.reader.read(*guest.link)) {
        case ps::FrameReader::Step::kNothing:
          if (!guest.late) return moved;
          arrive(living, connection, *std::exchange(guest.late, std::nullopt), now);
          moved = true;
          break;
        case ps::FrameReader::Step::kClosed: guest.is_gone = true; return true;
        case ps::FrameReader::Step::kMoved:
        case ps::FrameReader::Step::kHeader: moved = true; break;
        case ps::FrameReader::Step::kFrame:
          moved = true;
          hand_in(living, connection, guest, now);
          break;
      }
    } catch (const ProtocolError& error) {
      refusal_ = error.what();
      guest.is_gone = true;
      return true;
    }
  }
  return moved;
}

// Lost, late, or twice.
void PsServer::hand_in(Living& living, ps::Connection connection, Guest& guest, Time now) {
  ps::Frame frame{guest.reader.header(), guest.reader.take_payload()};
  const bool is_hello = frame.header.type == PsType::kHello;
  if (wire::is_numbered(frame.header.type) && dice_.percent(scenario_.lost_percent)) return;
  if (!is_hello && !guest.late && dice_.percent(scenario_.reorder_percent)) {
    guest.late = std::move(frame);
    return;
  }
  if (!is_hello && dice_.percent(scenario_.duplicate_percent))
    living.shard->receive(connection, frame, now, living.answers);
  arrive(living, connection, std::move(frame), now);
  if (guest.late && dice_.percent(70))
    arrive(living, connection, *std::exchange(guest.late, std::nullopt), now);
}

// Unless the shard holds as much of this client as it may: there it would not have been read.
void PsServer::arrive(Living& living, ps::Connection connection, ps::Frame frame, Time now) {
  if (living.shard->takes_from(connection) || ps::is_control(frame.header.type))
    living.shard->receive(connection, std::move(frame), now, living.answers);
}

// What the Python thread of a server process does: reads a piece now and then.
bool PsServer::write_checkpoint(std::size_t at) {
  Living& living = shards_[at];
  if (!living.writing || dice_.percent(50)) return living.writing.has_value();
  const std::uint64_t cut = *living.writing;
  try {
    if (living.shard->next_snapshot_piece(cut, 64 + dice_.below(2048), living.pieces)) return true;
  } catch (const InvalidArgument& error) {  // Another shard has refused the cut.
    living.writing.reset();
    living.shard->finish_job(cut, "", Failure::from(error), living.answers);
    return true;
  }
  living.shard->end_snapshot(cut);
  living.writing.reset();
  std::vector<std::byte> pieces(living.pieces.view().begin(), living.pieces.view().end());
  if (dice_.percent(50)) disks_[at].base = {pieces, disks_[at].position_of(cut) + 1};
  disks_[at].checkpoints[cut] = std::move(pieces);
  living.shard->finish_job(cut, "saved", {}, living.answers);
  return true;
}

void PsServer::post_answers(Living& living) {
  for (ps::Answer& answer : living.answers) {
    const auto found = living.guests.find(answer.to);
    if (found == living.guests.end()) continue;
    const ps::Frame frame = testing::arrived(std::move(answer));
    const auto head = wire::encode(frame.header);
    std::vector<std::byte> bytes(head.begin(), head.end());
    bytes.insert(bytes.end(), frame.payload.begin(), frame.payload.end());
    found->second.out.push_back(std::move(bytes));
  }
  living.answers.clear();
}

bool PsServer::write_to(Guest& guest) {
  bool moved = false;
  while (!guest.out.empty() && !guest.is_gone) {
    const auto rest = std::span<const std::byte>(guest.out.front()).subspan(guest.sent);
    const transport::Io io = guest.link->send_some(rest, {});
    guest.is_gone = io.closed;
    guest.sent += io.bytes;
    moved |= io.bytes > 0 || io.closed;
    if (io.bytes < rest.size()) return moved;
    guest.sent = 0;
    guest.out.pop_front();
  }
  return moved;
}

bool PsServer::has_given_up(std::uint32_t client) const {
  return std::any_of(disks_.begin(), disks_.end(),
                     [&](const PsDisk& disk) { return disk.has_given_up(client); });
}

Time PsServer::next_event() const {
  Time next = Time::max();
  for (const Living& living : shards_) next = std::min(next, living.shard->next_tick());
  return next;
}

}  // namespace gradring::sim
