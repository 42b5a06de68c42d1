// A shard's snapshot written into a file, with a real thread and a real file.
#include "ps/server/snapshot_writer.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <array>

#include "base/crc32c.h"
#include "support/ps/shard_rig.h"
#include "transport/links/fd.h"

namespace gradring::testing::snapshot_writer_test {

namespace {

using namespace gradring::ps;
using testing::ShardRig;

constexpr SnapshotHeader kHeader{0, 1, Shard::kOwnSnapshot, 0};

struct NoJournal final : DurableJournal {
  void append(const wire::PsHeader&, std::span<const std::byte>, std::uint32_t,
              std::uint64_t) override {}
  void sync(Time) override {}
  void replay(Shard&) override {}
};

struct RunningShard {
  ShardLoop loop{ShardOptions{}, std::make_unique<NoJournal>(), nullptr, {}};

  explicit RunningShard(ShardRig& like) {
    loop.start();
    loop.ask([&](Shard& shard, std::vector<Answer>&) {
      shard.begin_load();
      shard.load_piece(like.snapshot());
      shard.commit_load(true);
      REQUIRE(shard.begin_snapshot());
    });
  }
  ~RunningShard() { loop.stop(); }
};

// Without a name: gone when it is closed.
transport::Fd make_file() {
  std::string path = "/tmp/gradring-snapshot-XXXXXX";
  transport::Fd file(::mkostemp(path.data(), O_CLOEXEC));
  REQUIRE(file);
  ::unlink(path.c_str());
  return file;
}

std::vector<std::byte> bytes_in(int file) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(::lseek(file, 0, SEEK_END)));
  REQUIRE(::pread(file, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  return bytes;
}

std::vector<std::byte> pieces_of(std::span<const std::byte> blocks) {
  std::vector<std::byte> pieces;
  Block block;
  while (next_block(blocks, block))
    if (block.kind == BlockKind::kPiece)
      pieces.insert(pieces.end(), block.payload.begin(), block.payload.end());
  return pieces;
}

// Rows of three buffers and a half, of no even length; and dense records longer than the room that
// a buffer has left.
void fill(ShardRig& rig) {
  auto guest = rig.enter(1);
  rig.ask(guest, testing::make_table(testing::sum_table("rows", 1001)));
  testing::Ids ids(3501);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = i * i;
  testing::Values values(ids.size() * 1001);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 8191);
  rig.ask(guest, testing::push("rows", ids, values));
  TableSpec dense = testing::sum_table("dense", 0);
  dense.kind = TableKind::kDense;
  dense.count = 1'500'000;
  dense.rule.kind = kernels::RuleKind::kAdam;
  rig.ask(guest, testing::make_table(dense));
}

TEST_CASE("a snapshot of several buffers is in its file with every bit") {
  ShardRig rig;
  fill(rig);
  RunningShard shard(rig);
  const transport::Fd file = make_file();
  const SnapshotWritten written = write_snapshot(shard.loop, kHeader, {file.get(), "file"});
  CHECK((::fcntl(file.get(), F_GETFL) & O_DIRECT) == 0);

  const std::vector<std::byte> bytes = bytes_in(file.get());
  CHECK(bytes.size() > (std::size_t{24} << 20));
  CHECK(written.bytes == bytes.size());
  CHECK(written.crc == crc32c(bytes));
  Checker checker;
  checker.check(bytes);
  checker.finish();
  CHECK((checker.header() == kHeader));
  CHECK(checker.crc() == written.crc);
  const std::vector<std::byte> pieces = pieces_of(bytes);
  REQUIRE(written.front.size() < pieces.size());
  CHECK(std::equal(written.front.begin(), written.front.end(), pieces.begin()));

  ShardRig copy;
  copy.load({pieces}, true);
  CHECK((copy.snapshot() == rig.snapshot()));
}

TEST_CASE("a snapshot of hardly anything is a whole file, too") {
  ShardRig rig;
  RunningShard shard(rig);
  const transport::Fd file = make_file();
  const SnapshotWritten written = write_snapshot(shard.loop, kHeader, {file.get(), "file"});
  const std::vector<std::byte> bytes = bytes_in(file.get());
  CHECK(written.crc == crc32c(bytes));
  Checker checker;
  checker.check(bytes);
  checker.finish();
}

TEST_CASE("a file that cannot be written is named, and the shard goes on") {
  ShardRig rig;
  fill(rig);
  RunningShard shard(rig);
  const transport::Fd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  REQUIRE(full);
  CHECK_THROWS_WITH_AS(write_snapshot(shard.loop, kHeader, {full.get(), "/the/file"}),
                       "/the/file cannot be written: No space left on device", DeviceError);
  // Nobody reads any more: what is asked next is done.
  shard.loop.ask([](Shard& owner, std::vector<Answer>&) {
    owner.end_snapshot(Shard::kOwnSnapshot);
    CHECK(owner.begin_snapshot());
  });
  const transport::Fd file = make_file();
  CHECK(write_snapshot(shard.loop, kHeader, {file.get(), "file"}).bytes > 0);
}

// Saves into a pipe: once its first bytes are there, something happens, and the save must throw.
template <typename Expected, typename Happen>
void check_that_a_save_ends(const Happen& happen) {
  ShardRig rig;
  fill(rig);
  RunningShard shard(rig);
  std::array<int, 2> ends{};
  REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
  const transport::Fd from(ends[0]);
  transport::Fd to(ends[1]);
  std::thread saver([&] {
    CHECK_THROWS_AS(write_snapshot(shard.loop, kHeader, {to.get(), "pipe"}), Expected);
    to = {};
  });
  std::array<std::byte, 4096> some{};
  REQUIRE(::read(from.get(), some.data(), some.size()) > 0);
  happen(shard.loop);
  while (::read(from.get(), some.data(), some.size()) > 0) continue;
  saver.join();
}

TEST_CASE("a snapshot that ends while it is written makes no whole file") {
  check_that_a_save_ends<InvalidArgument>([](ShardLoop& loop) {
    loop.ask([](Shard& owner, std::vector<Answer>&) { owner.end_snapshot(Shard::kOwnSnapshot); });
  });
}

TEST_CASE("a server that stops while a snapshot is written says so") {
  check_that_a_save_ends<Closed>([](ShardLoop& loop) { loop.stop(); });
}

}  // namespace

}  // namespace gradring::testing::snapshot_writer_test
