// A shard with a log that loads a checkpoint: until its own disk has what was loaded, it goes on
// answering what is read, and changes nothing.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "ps/log/log_folder.h"
#include "support/no_memory.h"
#include "support/ps/one_shard.h"
#include "support/ps/requests.h"

namespace gradring::testing::log_load_test {
namespace {

namespace fs = std::filesystem;

class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "gradring-load-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~Folder() { fs::remove_all(path); }

  std::string path;
  ps::LogFolderOptions options(std::uint64_t most_log_bytes = 1u << 30) const {
    return {path, 0, 1, {}, most_log_bytes};
  }
  std::size_t count(const std::string& ending) const {
    std::size_t found = 0;
    for (const auto& entry : fs::directory_iterator(path + "/shard-00000-of-00001"))
      found += entry.path().filename().string().ends_with(ending) ? 1 : 0;
    return found;
  }
};

const std::vector<std::uint64_t> kFew{1, 2, 3};

// More than the log writes into a snapshot in one turn.
void fill(OneShard& one, float value) {
  std::vector<std::uint64_t> ids(250'000);
  std::iota(ids.begin(), ids.end(), std::uint64_t{0});
  one.push(ids, value);
}

std::vector<std::byte> checkpoint_of(float value) {
  const Folder elsewhere;
  OneShard source(elsewhere.options());
  source.join(1);
  source.make_tables();
  fill(source, value);
  ps::SnapshotBytes records;
  REQUIRE(source.shard().begin_snapshot());
  while (source.shard().next_snapshot_piece(ps::Shard::kOwnSnapshot, 1u << 20, records)) continue;
  return {records.view().begin(), records.view().end()};
}

void load(OneShard& one, const std::vector<std::byte>& records) {
  one.shard().begin_load();
  one.shard().load_piece(records);
  one.shard().commit_load(false);
}

TEST_CASE("while a loaded shard is written down its rows are read and nothing changes") {
  const std::vector<std::byte> checkpoint = checkpoint_of(4);
  const Folder folder;
  const Folder killed;
  OneShard one(folder.options());
  one.join(1);
  one.make_tables();
  one.push(kFew, 1);
  one.sync();
  const std::vector<float> before = one.rows(kFew);
  load(one, checkpoint);
  const std::vector<float> loaded = one.rows(kFew);
  CHECK((loaded != before));
  CHECK_THROWS_AS(one.push(kFew, 1), InternalError);  // No answer, and the next call is as before:
  one.sync();
  CHECK(one.shard().holds_changes());
  CHECK(!one.shard().begin_snapshot());
  CHECK(folder.count(".draft") == 1);
  fs::remove_all(killed.path);
  fs::copy(folder.path, killed.path, fs::copy_options::recursive);
  for (int turn = 0; one.shard().holds_changes(); ++turn) {
    REQUIRE(turn < 1000);
    one.sync();
  }
  CHECK(folder.count(".draft") == 0);
  CHECK(folder.count(".grps") == 1);
  std::vector<ps::Answer> answers;
  CHECK(one.shard().next_tick() == Time{});
  one.shard().tick(Time{}, answers);
  REQUIRE(answers.size() == 1);
  CHECK(answers[0].frame.header.type == wire::PsType::kDone);
  one.sync();
  const std::vector<float> after = one.rows(kFew);
  CHECK((after != loaded));

  OneShard taken_back(killed.options());
  CHECK(taken_back.join(1) == 3);
  CHECK((taken_back.rows(kFew) == before));
}

TEST_CASE("a loaded shard that finds no memory to be written down goes on once there is some") {
  const std::vector<std::byte> checkpoint = checkpoint_of(4);
  const Folder folder;
  OneShard one(folder.options());
  one.join(1);
  one.make_tables();
  const std::vector<float> before = one.rows(kFew);
  load(one, checkpoint);
  Millis next{1};
  for (int nth = 0; nth < 3; ++nth) {
    {
      const NoHeap none(4000);
      one.sync(Time{} + next);
    }
    CHECK(one.shard().holds_changes());
    CHECK(folder.count(".draft") == 0);
    CHECK((one.rows(kFew) != before));
    one.sync(Time{} + next);  // Too early for the next try.
    CHECK(folder.count(".draft") == 0);
    next += Millis{1000};
  }
  CHECK_THROWS_AS(one.push(kFew, 1), InternalError);  // No answer yet.
  for (int turn = 0; one.shard().holds_changes(); ++turn) {
    REQUIRE(turn < 1000);
    one.sync(Time{} + next);
  }
  CHECK(folder.count(".grps") == 1);
}

TEST_CASE("no checkpoint is taken of what may be taken back") {
  const std::vector<std::byte> checkpoint = checkpoint_of(4);
  const Folder folder;
  OneShard one(folder.options());
  one.join(1);
  const auto ask = [&one](const Request& request) {
    return one.ask(request.header, request.rest).header.type;
  };
  CHECK(ask(freeze(9, Millis{1000})) == wire::PsType::kFrozen);
  load(one, checkpoint);
  CHECK_THROWS_AS(ask(cut(9, "")), InvalidArgument);
  CHECK_THROWS_AS(ask(freeze(10, Millis{1000})), InvalidArgument);
  while (one.shard().holds_changes()) one.sync();
  std::vector<ps::Answer> answers;
  one.shard().tick(Time{} + Millis{2000}, answers);  // The first freeze melts.
  CHECK(ask(freeze(10, Millis{1000})) == wire::PsType::kFrozen);
  CHECK(ask(cut(10, "")) == wire::PsType::kDone);
}

TEST_CASE("a load in place of another that is being written down is what is there in the end") {
  const Folder folder;
  {
    OneShard one(folder.options());
    one.join(1);
    load(one, checkpoint_of(4));
    one.sync();
    REQUIRE(folder.count(".draft") == 1);
    load(one, checkpoint_of(8));
    one.sync();
    CHECK(folder.count(".draft") == 1);
    while (one.shard().holds_changes()) one.sync();
    CHECK(folder.count(".draft") == 0);
  }
  OneShard one(folder.options());
  const Folder elsewhere;
  OneShard expected(elsewhere.options());
  one.join(1);
  expected.join(1);
  load(expected, checkpoint_of(8));
  CHECK((one.rows(kFew) == expected.rows(kFew)));
}

TEST_CASE("a load during a new start of the log leaves no half of a snapshot behind") {
  const Folder folder;
  OneShard one(folder.options(1000));
  one.join(1);
  one.make_tables();
  fill(one, 1);
  for (int turn = 0; folder.count(".draft") == 0; ++turn) {
    REQUIRE(turn < 10);
    one.sync();
  }
  load(one, checkpoint_of(4));
  while (one.shard().holds_changes()) one.sync();
  CHECK(folder.count(".draft") == 0);
  CHECK(folder.count(".grps") == 1);
}

}  // namespace
}  // namespace gradring::testing::log_load_test
