// A log folder whose disk says no: the error names what it is about. One whose server has no memory
// for a snapshot goes on.
#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "ps/log/log_folder.h"
#include "support/ps/one_shard.h"

namespace gradring::testing::log_disk_test {
namespace {

namespace fs = std::filesystem;

class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "gradring-disk-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~Folder() { fs::remove_all(path); }

  std::string path;
  std::string shard() const { return path + "/shard-00000-of-00001"; }
  // A folder where a file belongs, which is not empty: nobody removes it as a file.
  std::string stuck(const std::string& name) const {
    fs::create_directories(shard() + "/" + name + "/inside");
    return shard() + "/" + name;
  }
  ps::LogFolderOptions options(std::uint64_t most_log_bytes = 1u << 30) const {
    return {path, 0, 1, {}, most_log_bytes};
  }
};

TEST_CASE("a draft that cannot be removed at the start is named") {
  const Folder folder;
  for (const char* name : {"segment-000000000009.log.draft", "snapshot-000000000009.grps.draft"}) {
    const std::string draft = folder.stuck(name);
    CHECK_THROWS_WITH_AS(OneShard{folder.options()}, doctest::Contains(draft.c_str()), DeviceError);
    fs::remove_all(draft);
  }
}

TEST_CASE("an old file that cannot be removed when the log starts anew is named") {
  const Folder folder;
  OneShard one(folder.options(0));
  one.join(1);
  one.make_tables();
  const std::string old = folder.stuck("snapshot-000000000000.grps");
  const auto sync_often = [&] {
    for (int turn = 0; turn < 100; ++turn) one.sync();
  };
  CHECK_THROWS_WITH_AS(sync_often(), doctest::Contains(old.c_str()), DeviceError);
}

TEST_CASE(
    "a log whose snapshot finds no memory grows, also after a restart, and starts anew later") {
  constexpr std::uint64_t kMost = std::uint64_t{32} << 10;
  constexpr std::uint64_t kNone = 0;
  const Folder folder;
  const auto count = [&](const char* ending) {
    std::size_t found = 0;
    for (const auto& entry : fs::directory_iterator(folder.shard()))
      found += entry.path().filename().string().ends_with(ending) ? 1 : 0;
    return found;
  };
  const auto push_often = [](OneShard& one) {
    for (int nth = 0; nth < 20; ++nth) {
      one.push_dense(1);
      one.sync();
    }
  };
  std::vector<float> expected;
  for (const std::uint64_t incarnation : {1u, 2u, 3u}) {
    OneShard one(folder.options(kMost), kNone);
    one.join(incarnation);
    one.make_tables();
    if (!expected.empty()) CHECK((one.dense() == expected));
    push_often(one);
    CHECK(count(".grps") + count(".draft") == 0);
    CHECK(one.log().segment() == incarnation);  // Nor is one begun for nothing.
    expected = one.dense();
  }
  OneShard one(folder.options(kMost));
  one.join(4);
  CHECK((one.dense() == expected));
  push_often(one);
  CHECK(count(".grps") == 1);
}

TEST_CASE("a folder that cannot be read is named") {
  const Folder folder;
  SUBCASE("that of a shard") {
    ps::LogFolder log(folder.options());
    ps::Shard shard({}, log);
    fs::rename(folder.shard(), folder.path + "/elsewhere");
    CHECK_THROWS_WITH_AS(log.replay(shard), doctest::Contains(folder.shard().c_str()), DeviceError);
  }
  SUBCASE("that of all shards") {
    if (::geteuid() == 0) return;  // Root reads what nobody may.
    fs::permissions(folder.path, fs::perms::owner_exec);
    CHECK_THROWS_WITH_AS(ps::LogFolder{folder.options()}, doctest::Contains(folder.path.c_str()),
                         DeviceError);
    fs::permissions(folder.path, fs::perms::owner_all);
  }
}

}  // namespace
}  // namespace gradring::testing::log_disk_test
