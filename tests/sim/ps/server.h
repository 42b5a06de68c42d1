// PsServer: a server process of the simulation: its shards, the connections to them, and their
// disk, which outlives the process. Does in each step what a shard's thread does in a turn: read,
// make durable, answer; and may be killed between any two of these.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ps/protocol/frame_reader.h"
#include "ps/shard/shard.h"
#include "sim/dice.h"
#include "sim/ps/network.h"
#include "support/ps/shard_rig.h"

namespace gradring::sim {

// What a shard's process leaves behind: the log as far as it was written, and what was appended and
// not written yet, of which a crash keeps any first part.
class PsDisk final : public ps::Journal {
 public:
  void append(const wire::PsHeader& header, std::span<const std::byte> payload,
              std::uint32_t client, std::uint64_t incarnation) override {
    unwritten_.append(header, payload, client, incarnation);
  }
  void sync();
  void crash(Dice& dice);
  // Nothing is written: a new process repeats what is there already.
  void forget_unwritten() { unwritten_.records.clear(); }
  bool has_given_up(std::uint32_t client) const;

  std::vector<testing::JournalRecord> log;
  struct Base {  // A local snapshot: what comes before `from` in the log is in it.
    std::vector<std::byte> bytes;
    std::size_t from = 0;
  };
  std::optional<Base> base;
  std::map<std::uint64_t, std::vector<std::byte>> checkpoints;  // This shard's part, by cut.

  // Position of a cut's mark in the log.
  std::size_t position_of(std::uint64_t cut) const;

 private:
  testing::MemoryJournal unwritten_;
};

class PsServer {
 public:
  PsServer(const PsScenario& scenario, std::uint32_t index);

  void start();
  void kill();
  // To be killed in the next step, at some point of it.
  void doom() { is_doomed_ = true; }
  bool is_up() const { return !shards_.empty(); }
  void set_frozen(bool is_frozen) { is_frozen_ = is_frozen; }
  bool runs() const { return is_up() && !is_frozen_; }

  void accept(std::uint32_t shard, std::unique_ptr<transport::MemoryLink> link, Time now);
  bool step(Time now);
  Time next_event() const;

  std::uint32_t first_shard() const { return index_ * scenario_.threads; }
  ps::Shard& shard(std::uint32_t shard) { return *shards_[shard - first_shard()].shard; }
  PsDisk& disk(std::uint32_t shard) { return disks_[shard - first_shard()]; }
  // A shard that never lived, with the same place and options.
  std::unique_ptr<ps::Shard> blank(std::uint32_t shard, ps::Journal& journal) const;
  // A request that made no sense; clients here send none, but for the poisoned one.
  const std::string& refusal() const { return refusal_; }
  // Some shard, at some time.
  bool has_given_up(std::uint32_t client) const;

 private:
  struct Guest {
    std::unique_ptr<transport::MemoryLink> link;
    ps::FrameReader reader;
    std::deque<std::vector<std::byte>> out;
    std::size_t sent = 0;  // Of the first.
    bool is_gone = false;
    std::optional<ps::Frame> late;  // Arrives behind a later one.
  };
  struct Living {
    std::unique_ptr<ps::Shard> shard;
    std::map<ps::Connection, Guest> guests;
    std::vector<ps::Answer> answers;
    std::optional<std::uint64_t> writing;  // A cut whose pieces are being read out.
    ps::SnapshotBytes pieces;
  };

  bool turn(std::size_t at, Time now);
  bool read_from(Living& living, ps::Connection connection, Guest& guest, Time now);
  void arrive(Living& living, ps::Connection connection, ps::Frame frame, Time now);
  void hand_in(Living& living, ps::Connection connection, Guest& guest, Time now);
  bool write_checkpoint(std::size_t at);
  void post_answers(Living& living);
  bool write_to(Guest& guest);
  ps::ShardOptions options_of(std::uint32_t shard) const;

  const PsScenario& scenario_;
  std::uint32_t index_;
  Dice dice_;
  std::vector<PsDisk> disks_;
  std::vector<Living> shards_;  // Empty while the process is down.
  std::uint64_t incarnation_ = 0;
  ps::Connection last_connection_ = 0;
  bool is_doomed_ = false;
  bool is_frozen_ = false;
  std::string refusal_;
};

}  // namespace gradring::sim
