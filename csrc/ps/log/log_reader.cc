#include "ps/log/log_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/config.h"
#include "base/error.h"
#include "ps/log/log_format.h"

namespace gradring::ps {
namespace {

constexpr std::size_t kScanBytes = std::size_t{1} << 20;

template <typename Raw>
Raw load(std::span<const std::byte> bytes) {
  Raw raw;
  std::memcpy(&raw, bytes.data(), sizeof raw);
  return raw;
}

}  // namespace

LogReader::LogReader(std::string path, bool is_last) : path_(std::move(path)), is_last_(is_last) {
  file_ = transport::Fd(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat found{};
  if (!file_ || ::fstat(file_.get(), &found) != 0)
    throw DeviceError(str("log: ", path_, " cannot be opened: ", std::strerror(errno)));
  file_bytes_ = static_cast<std::uint64_t>(found.st_size);
  read_header();
}

void LogReader::read_header() {
  RawSegment raw{};
  const std::size_t got = read_at(0, std::as_writable_bytes(std::span(&raw, 1)));
  if (is_last_ && file_bytes_ <= sizeof raw && (got < sizeof raw || raw.crc != own_crc(raw))) {
    torn_ = "its header is torn, from a crash while it was begun";
    return;
  }
  if (got < sizeof raw || raw.magic != kSegmentMagic || raw.crc != own_crc(raw))
    throw ProtocolError(str("log: ", path_, " is damaged at byte 0: its header is wrong; nothing ",
                            "of it was loaded"));
  if (raw.version != kLogVersion)
    throw ProtocolError(str("log: ", path_, " has version ", raw.version,
                            " of the format; this build reads ", kLogVersion));
  shard_ = raw.shard;
  shards_ = raw.shards;
  segment_ = raw.segment;
  first_record_ = next_record_ = raw.first_record;
  nonce_ = raw.nonce;
  at_ = sizeof raw;
}

std::size_t LogReader::read_at(std::uint64_t offset, std::span<std::byte> into) const {
  std::size_t got = 0;
  while (got < into.size()) {
    const ssize_t read = ::pread(file_.get(), into.data() + got, into.size() - got,
                                 static_cast<off_t>(offset + got));
    if (read < 0 && errno == EINTR) continue;
    if (read < 0)
      throw DeviceError(str("log: ", path_, " cannot be read at byte ", offset + got, ": ",
                            std::strerror(errno)));
    if (read == 0) break;
    got += static_cast<std::size_t>(read);
  }
  return got;
}

bool LogReader::next(LogRecord& record) {
  while (records_left_ == 0) {
    if (!torn_.empty() || !read_batch()) return false;
  }
  const auto rest = std::span<const std::byte>(batch_).subspan(batch_at_);
  if (rest.size() < sizeof(RawRecord))
    throw ProtocolError(str("log: ", path_, ": a record is missing before byte ", at_));
  const auto raw = load<RawRecord>(rest);
  record.header = wire::decode_ps_header(raw.header);
  record.client = raw.client;
  record.incarnation = raw.incarnation;
  const std::uint64_t whole = sizeof raw + (record.header.payload_bytes + 7) / 8 * 8;
  if (whole > rest.size())
    throw ProtocolError(str("log: ", path_, ": a record is cut short before byte ", at_));
  record.payload = rest.subspan(sizeof raw, static_cast<std::size_t>(record.header.payload_bytes));
  batch_at_ += static_cast<std::size_t>(whole);
  --records_left_;
  return true;
}

bool LogReader::read_batch() {
  if (at_ == file_bytes_) return false;
  RawBatch raw{};
  const std::size_t got = read_at(at_, std::as_writable_bytes(std::span(&raw, 1)));
  if (got < sizeof raw) return stop("a batch's header is cut short");
  if (raw.magic != kBatchMagic || raw.nonce != nonce_ || raw.crc != own_crc(raw))
    return stop("no batch begins here");
  if (raw.body_bytes > file_bytes_ - at_ - sizeof raw)
    return stop(str("a batch of ", raw.body_bytes, " bytes is cut short"));
  batch_.resize(static_cast<std::size_t>(raw.body_bytes));
  read_at(at_ + sizeof raw, batch_);
  if (raw.body_crc != crc32c(batch_)) return stop("a batch's checksum is wrong");
  if (raw.first_record != next_record_)
    throw ProtocolError(str("log: ", path_, " is damaged at byte ", at_, ": record ", next_record_,
                            " should come and ", raw.first_record, " does"));
  batch_begin_ = at_;
  vouched_ = std::min(raw.vouched, at_);
  at_ += sizeof raw + raw.body_bytes;
  next_record_ += raw.records;
  batch_at_ = 0;
  records_left_ = raw.records;
  return true;
}

bool LogReader::stop(const std::string& what) {
  if (!is_last_ || is_vouched_for())
    throw ProtocolError(
        str("log: ", path_, " is damaged at byte ", at_, " of ", file_bytes_, ": ", what,
            ", and what was there had been acknowledged; the log was not loaded. Bring the file "
            "back, or load a checkpoint into a server with an empty log folder"));
  torn_ = str("the last ", file_bytes_ - at_, " bytes are torn (", what, ")");
  return false;
}

// A later batch says that what lies here was durable.
bool LogReader::is_vouched_for() const {
  Bytes window(kScanBytes);
  const auto nonce = raw_bytes(nonce_);
  std::uint64_t from = at_ + 1;
  while (from < file_bytes_) {
    const std::size_t got = read_at(from, window);
    const std::span<const std::byte> seen = std::span<const std::byte>(window).first(got);
    auto hit = seen.begin();
    while ((hit = std::search(hit, seen.end(), nonce.begin(), nonce.end())) != seen.end()) {
      const std::uint64_t begin =
          from + static_cast<std::uint64_t>(hit - seen.begin()) - offsetof(RawBatch, nonce);
      ++hit;
      RawBatch raw{};
      if (read_at(begin, std::as_writable_bytes(std::span(&raw, 1))) < sizeof raw) continue;
      if (raw.magic == kBatchMagic && raw.crc == own_crc(raw) && raw.vouched > at_) return true;
    }
    if (got < kScanBytes) return false;
    from += got - sizeof nonce_ + 1;
  }
  return false;
}

}  // namespace gradring::ps
