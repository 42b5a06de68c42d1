// The checksum of files, and the framing of a shard's snapshot: what is damaged, cut short, doubled
// or missing is found by whoever checks, wherever it is.
#include "ps/log/snapshot.h"

#include <doctest/doctest.h>

#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>

#include "base/crc32c.h"
#include "base/error.h"

namespace gradring::ps::snapshot_test {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

Bytes counting(std::size_t count) {
  Bytes bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * 131 + i / 256);
  return bytes;
}

constexpr SnapshotHeader kHeader{.shard = 2, .shards = 5, .cut = 77, .base = 33};

Bytes unsealed() {
  Bytes out;
  put_header(out, kHeader);
  put_block(out, BlockKind::kPiece, bytes_of("some text"));
  put_block(out, BlockKind::kPiece, counting(100));
  put_block(out, BlockKind::kPiece, {});
  return out;
}

Bytes sealed() {
  Bytes out = unsealed();
  Sealer sealer;
  sealer.seal(out);
  sealer.finish(out);
  return out;
}

std::string complaint_about(std::span<const std::byte> file) {
  try {
    Checker checker;
    std::size_t needed = 0;
    const std::size_t whole = whole_blocks(file, needed);
    checker.check(file.first(whole));
    checker.finish();
    if (whole != file.size()) return "bytes are left";
    return "";
  } catch (const ProtocolError& error) {
    return error.what();
  }
}

TEST_CASE("the checksum is CRC-32C: the vectors of RFC 3720 and of the CRC catalogue") {
  std::vector<std::byte> bytes(32);
  CHECK(crc32c(bytes) == 0x8a9136aa);
  std::fill(bytes.begin(), bytes.end(), std::byte{0xff});
  CHECK(crc32c(bytes) == 0x62a8ab43);
  for (std::size_t i = 0; i < 32; ++i) bytes[i] = static_cast<std::byte>(i);
  CHECK(crc32c(bytes) == 0x46dd794e);
  for (std::size_t i = 0; i < 32; ++i) bytes[i] = static_cast<std::byte>(31 - i);
  CHECK(crc32c(bytes) == 0x113fdb5c);
  CHECK(crc32c(bytes_of("123456789")) == 0xe3069283);
  CHECK(crc32c({}) == 0);
}

TEST_CASE("where the CPU has an instruction for the checksum there is a way that uses it") {
#if defined(__x86_64__)
  const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
#elif defined(__aarch64__)
  const bool has_instruction = (::getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
#else
  const bool has_instruction = false;
#endif
  CHECK((crc32c_ways().size() > 1) == has_instruction);
}

TEST_CASE("the checksum is the same in all ways that the CPU has, in any pieces") {
  const Bytes bytes = counting(20011);
  for (const std::size_t count :
       {0, 1, 7, 8, 9, 63, 1023, 1024, 1025, 1279, 1280, 2048, 6143, 6144, 6145, 12289, 20011}) {
    CAPTURE(count);
    const auto part = std::span(bytes).first(count);
    const std::uint32_t whole = crc32c_ways().front().checksum(part, 0);
    const std::uint32_t behind = crc32c_ways().front().checksum(part, 0x12345678);
    for (const Crc32cWay& way : crc32c_ways()) {
      CHECK(way.checksum(part, 0) == whole);
      CHECK(way.checksum(part, 0x12345678) == behind);
    }
    CHECK(crc32c(part) == whole);
    for (const std::size_t cut : {std::size_t{1}, count / 3, count / 2 + 1}) {
      if (cut > count) continue;
      CHECK(crc32c(part.subspan(cut), crc32c(part.first(cut))) == whole);
      const std::uint32_t of_rest = crc32c(part.subspan(cut));
      CHECK(crc32c_joined(crc32c(part.first(cut)), of_rest, count - cut) == whole);
    }
  }
}

TEST_CASE("what is copied and summed up at once is all there, and nothing beside it is written") {
  const Bytes bytes = counting(20011);
  constexpr std::byte kUntouched{0xa5};
  for (const std::size_t count : {0, 1, 63, 64, 255, 256, 257, 1024, 6144, 6145, 12288, 19900}) {
    for (const std::size_t to : {0, 1, 16, 63, 64}) {
      CAPTURE(count);
      CAPTURE(to);
      const auto part = std::span(bytes).subspan(to * 5 % 111, count);
      for (const Crc32cWay& way : crc32c_ways()) {
        Bytes copy(count + 256, kUntouched);
        CHECK(way.copy(copy.data() + 64 + to, part, 0x12345678) ==
              crc32c_ways().front().checksum(part, 0x12345678));
        Bytes expected(count + 256, kUntouched);
        std::copy(part.begin(), part.end(), expected.data() + 64 + to);
        CHECK((copy == expected));
      }
    }
  }
}

TEST_CASE("checksums of a snapshot's bytes are those of its bytes, from anywhere to anywhere") {
  const Bytes bytes = counting(50'000);
  SnapshotBytes on_the_way(SnapshotBytes::Reader::kDisk);
  std::size_t at = 0;
  for (const std::size_t count : {10, 5000, 6000, 3000, 4095, 4096, 7, 20000}) {
    const auto part = std::span(bytes).subspan(at, count);
    if (count % 1000 == 0)
      on_the_way.append_run(part);
    else
      on_the_way.append(part);
    at += count;
  }
  REQUIRE(std::ranges::equal(on_the_way.view(), std::span(bytes).first(at)));
  for (const std::size_t size : {at, at - 1, std::size_t{11'000}, std::size_t{100}}) {
    on_the_way.cut_to(size);
    for (const std::size_t begin : {std::size_t{0}, std::size_t{10}, std::size_t{11}, size / 2})
      for (const std::size_t end : {size, size - 1, std::max(begin, size / 3)})
        CHECK(on_the_way.checksum(begin, end) ==
              crc32c(std::span(bytes).subspan(begin, end - begin)));
  }
}

TEST_CASE(
    "what changes in memory behind a copy is not in its checksum, so whoever reads finds it") {
  const Bytes bytes = counting(10'000);
  for (const auto reader : {SnapshotBytes::Reader::kDisk, SnapshotBytes::Reader::kProcessor}) {
    SnapshotBytes on_the_way(reader);
    on_the_way.append_run(bytes);
    on_the_way.data()[5000] ^= std::byte{1};
    const bool is_of_the_copy = on_the_way.checksum(0, bytes.size()) == crc32c(bytes);
    CHECK(is_of_the_copy == (reader == SnapshotBytes::Reader::kDisk));
  }
}

TEST_CASE("a snapshot's blocks come back as they were put, with a header that says what it is") {
  const Bytes file = sealed();
  CHECK(complaint_about(file) == "");

  Checker checker;
  CHECK_FALSE(checker.has_header());
  checker.check(file);
  checker.finish();
  REQUIRE(checker.has_header());
  CHECK((checker.header() == kHeader));
  CHECK(checker.bytes() == file.size());
  CHECK(checker.crc() == crc32c(file));

  std::span<const std::byte> rest = file;
  Block block;
  REQUIRE(next_block(rest, block));
  CHECK((decode_snapshot_header(block.payload) == kHeader));
  REQUIRE(next_block(rest, block));
  CHECK(block.kind == BlockKind::kPiece);
  CHECK(std::string(reinterpret_cast<const char*>(block.payload.data()), block.payload.size()) ==
        "some text");
  REQUIRE(next_block(rest, block));
  CHECK(block.kind == BlockKind::kPiece);
  const Bytes rows = counting(100);
  CHECK(std::equal(block.payload.begin(), block.payload.end(), rows.begin(), rows.end()));
  CHECK(reinterpret_cast<std::uintptr_t>(block.payload.data()) % 8 == 0);
  REQUIRE(next_block(rest, block));
  CHECK(block.payload.empty());
  REQUIRE(next_block(rest, block));
  CHECK(block.kind == BlockKind::kFooter);
  CHECK_FALSE(next_block(rest, block));
}

TEST_CASE("checksums do not depend on how the blocks are handed over") {
  Bytes all = unsealed();
  Sealer sealer;
  std::span<const std::byte> rest = all;
  Block block;
  while (!rest.empty()) {
    const std::size_t begin = all.size() - rest.size();
    next_block(rest, block);
    sealer.seal(std::span(all).subspan(begin, all.size() - rest.size() - begin));
  }
  sealer.finish(all);
  CHECK((all == sealed()));
}

TEST_CASE("a piece sealed where it lies makes the same block as one in a block") {
  for (const std::size_t count : {0, 1, 7, 8, 100}) {
    CAPTURE(count);
    const Bytes piece = counting(count);
    Bytes whole;
    put_header(whole, kHeader);
    put_block(whole, BlockKind::kPiece, piece);
    Sealer sealer;
    sealer.seal(whole);
    sealer.finish(whole);

    Bytes joined;
    std::vector<std::byte> head;
    std::vector<std::byte> fill;
    put_header(joined, kHeader);
    Sealer other;
    other.seal(joined);
    other.seal_piece(piece, head, fill);
    joined.insert(joined.end(), head.begin(), head.end());
    joined.insert(joined.end(), piece.begin(), piece.end());
    joined.insert(joined.end(), fill.begin(), fill.end());
    other.finish(joined);
    CHECK((joined == whole));
    CHECK(other.crc() == crc32c(whole));
    CHECK(other.bytes() == whole.size());
  }
}

TEST_CASE("a snapshot cut short at any byte is refused") {
  const Bytes file = sealed();
  for (std::size_t length = 0; length < file.size(); ++length) {
    CAPTURE(length);
    CHECK(complaint_about(std::span(file).first(length)) != "");
  }
}

TEST_CASE("a snapshot with any bit flipped is refused") {
  Bytes file = sealed();
  for (std::size_t at = 0; at < file.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      file[at] ^= static_cast<std::byte>(1 << bit);
      CAPTURE(at);
      CHECK(complaint_about(file) != "");
      file[at] ^= static_cast<std::byte>(1 << bit);
    }
  }
}

TEST_CASE("a block that is missing, doubled or behind the footer is found, and where") {
  const Bytes file = sealed();
  std::vector<std::size_t> begins;
  std::span<const std::byte> rest = file;
  Block block;
  while (!rest.empty()) {
    begins.push_back(file.size() - rest.size());
    next_block(rest, block);
  }
  begins.push_back(file.size());
  for (std::size_t i = 0; i + 1 < begins.size(); ++i) {
    CAPTURE(i);
    const auto begin = file.begin() + static_cast<std::ptrdiff_t>(begins[i]);
    const auto end = file.begin() + static_cast<std::ptrdiff_t>(begins[i + 1]);
    std::vector<std::byte> without(file.begin(), begin);
    without.insert(without.end(), end, file.end());
    CHECK(complaint_about(without) != "");
    std::vector<std::byte> doubled(file.begin(), end);
    doubled.insert(doubled.end(), begin, file.end());
    CHECK(complaint_about(doubled).find("damaged at byte ") == 0);
  }
}

TEST_CASE("pieces that end inside a block say how much is needed for the next whole one") {
  const Bytes file = sealed();
  std::size_t needed = 0;
  CHECK(whole_blocks(std::span(file).first(20), needed) == 0);
  CHECK(needed == kBlockHeaderBytes);
  CHECK(whole_blocks(std::span(file).first(40), needed) == 0);
  CHECK(needed == 64);  // The header's payload has 32 bytes.
  CHECK(whole_blocks(std::span(file).first(64), needed) == 64);
  CHECK(whole_blocks(file, needed) == file.size());
}

TEST_CASE("a block over the limit is refused before anybody takes memory for it") {
  Bytes out;
  put_block(out, BlockKind::kPiece, counting(8));
  const std::uint64_t huge = std::uint64_t{1} << 40;
  std::memcpy(out.data() + 16, &huge, sizeof huge);
  std::span<const std::byte> rest = out;
  Block block;
  CHECK_THROWS_AS(next_block(rest, block), ProtocolError);
}

}  // namespace
}  // namespace gradring::ps::snapshot_test
