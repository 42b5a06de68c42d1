// ShardRig: a shard alone, with a journal in memory and clients that are spoken for frame by frame.
// Everything happens in the test's thread, on the test's clock.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ps/shard/shard.h"
#include "support/ps/requests.h"

namespace gradring::testing {

struct JournalRecord {
  wire::PsHeader header;
  Bytes payload;
  std::uint32_t client = 0;
  std::uint64_t incarnation = 0;
};

class MemoryJournal final : public ps::Journal {
 public:
  void append(const wire::PsHeader& header, std::span<const std::byte> payload,
              std::uint32_t client, std::uint64_t incarnation) override;
  std::vector<JournalRecord> records;
  std::size_t most_bytes = ~std::size_t{0};  // Of a record: there is no memory for more.
};

// A client of one shard over one connection.
struct Guest {
  ps::Connection connection = 0;
  std::uint32_t client = 0;
  std::uint64_t seq = 0;
  wire::Tail tail;  // Of the next numbered request; empty: only itself.
};

class ShardRig {
 public:
  explicit ShardRig(std::uint32_t shard = 0, std::uint32_t shards = 1,
                    std::uint64_t incarnation = 77);
  explicit ShardRig(const ps::ShardOptions& options);
  static ps::ShardOptions options_of(std::uint32_t shard = 0, std::uint32_t shards = 1,
                                     std::uint64_t incarnation = 77);

  ps::Shard& shard() { return shard_; }
  MemoryJournal journal;
  Time now = Time{} + Millis{1'000'000};

  // Connects and says hello; the guest's seq is what the welcome says.
  Guest enter(std::uint32_t client, std::uint64_t incarnation = 1);
  // Sends; the answers to anybody are returned in their order.
  std::vector<ps::Answer> send(Guest& guest, const Request& request);
  std::vector<ps::Answer> send_frame(const Guest& guest, ps::Frame frame);
  // The frame that send() would send, numbered and all.
  ps::Frame frame_of(Guest& guest, const Request& request);
  // send(), where exactly one answer is expected.
  ps::Frame ask(Guest& guest, const Request& request);
  std::vector<ps::Answer> tick_after(Millis wait);

  // The shard's state in the bytes of a snapshot. Nobody is connected to it as client 999.
  std::vector<std::byte> snapshot();
  // What another shard makes of snapshots, as if it read a checkpoint or (recovery) its own.
  void load(const std::vector<std::vector<std::byte>>& snapshots, bool is_recovery);
  void replay(const std::vector<JournalRecord>& records);

 private:
  ps::Shard shard_;
  ps::Connection last_connection_ = 0;
  std::uint64_t last_request_ = 0;
  std::uint64_t last_cut_ = 0;
  std::optional<Guest> saver_;
};

// A guest that has made, or found, the table "t" of sums, of so many floats a row.
inline constexpr std::uint32_t kSumsDim = 2;
Guest enter_with_table(ShardRig& rig, std::uint32_t client, std::uint64_t incarnation = 1);
// Its rows. Throws if that is not what the shard answers.
Values pulled(ShardRig& rig, Guest& guest, const Ids& ids);

std::string text_of(const ps::Frame& frame);
ErrorKind error_of(const ps::Frame& frame);  // kNone if it is none.

}  // namespace gradring::testing
