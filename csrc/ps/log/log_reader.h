// LogReader: reads a segment of a log back, record by record. Tells a torn tail, which a crash
// leaves and nobody was promised, from damage to what was promised. Used when a shard recovers.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/bytes.h"
#include "transport/links/fd.h"
#include "wire/ps_frames.h"

namespace gradring::ps {

struct LogRecord {
  wire::PsHeader header;
  std::uint32_t client = 0;
  std::uint64_t incarnation = 0;
  std::span<const std::byte> payload;  // Until the next record is read; begins at a multiple of 8.
};

class LogReader {
 public:
  // Throws DeviceError if the file cannot be read, and ProtocolError that names file
  // and byte if it is damaged. Only the last segment of a log may be torn.
  LogReader(std::string path, bool is_last);

  std::uint32_t shard() const { return shard_; }
  std::uint32_t shards() const { return shards_; }
  std::uint64_t segment() const { return segment_; }
  std::uint64_t first_record() const { return first_record_; }

  // False at the end, or where the tail is torn. Throws as the constructor.
  bool next(LogRecord& record);

  // After the end: how many bytes of the file are good, and what is wrong with those behind them
  // ("" if there are none).
  std::uint64_t good_bytes() const { return at_; }
  const std::string& torn() const { return torn_; }
  // Of them, how many were as durable as promised before the last good batch was written.
  std::uint64_t vouched() const { return vouched_; }
  // Where the last record's batch begins in the file.
  std::uint64_t batch_begin() const { return batch_begin_; }
  std::uint64_t next_record() const { return next_record_; }

 private:
  bool read_batch();
  void read_header();
  std::size_t read_at(std::uint64_t offset, std::span<std::byte> into) const;
  // Decides what a bad batch at at_ is.
  bool stop(const std::string& what);
  bool is_vouched_for() const;

  std::string path_;
  bool is_last_;
  transport::Fd file_;
  std::uint64_t file_bytes_ = 0;
  std::uint32_t shard_ = 0;
  std::uint32_t shards_ = 0;
  std::uint64_t segment_ = 0;
  std::uint64_t first_record_ = 0;
  std::uint64_t nonce_ = 0;
  std::uint64_t next_record_ = 0;
  std::uint64_t batch_begin_ = 0;
  std::uint64_t at_ = 0;  // Behind the last good batch.
  std::uint64_t vouched_ = 0;
  std::string torn_;
  Bytes batch_;
  std::size_t batch_at_ = 0;
  std::uint32_t records_left_ = 0;
};

}  // namespace gradring::ps
