// A shard with a log that loads a checkpoint.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "ps/log_folder.h"
#include "support/one_shard.h"

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
  std::vector<std::byte> records;
  REQUIRE(source.shard().begin_snapshot());
  while (source.shard().next_snapshot_piece(1u << 20, records)) continue;
  return records;
}

void load(OneShard& one, const std::vector<std::byte>& records) {
  one.shard().begin_load();
  one.shard().load_piece(records);
  one.shard().commit_load(false);
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
  one.sync();
  CHECK(folder.count(".draft") == 0);
  CHECK(folder.count(".grps") == 1);
}

}  // namespace
}  // namespace gradring::testing::log_load_test
