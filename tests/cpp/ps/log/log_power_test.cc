// A log whose host loses power: what a server has answered by is there, also where the server
// before it was killed before that was on the disk, or the disk had failed.
#include <doctest/doctest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "ps/log/log_folder.h"
#include "support/ps/one_shard.h"
#include "support/ps/power_cut.h"

namespace gradring::testing::log_power_test {
namespace {

namespace fs = std::filesystem;

class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "gradring-power-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path = name;
    fs::create_directory(shard());
  }
  ~Folder() { fs::remove_all(path); }

  std::string path;
  std::string shard() const { return path + "/shard-00000-of-00001"; }
  ps::LogFolderOptions options(const char* policy, std::uint64_t most_log_bytes = 1u << 30) const {
    return {path, 0, 1, ps::parse_fsync_policy(policy), most_log_bytes};
  }
};

const std::vector<std::uint64_t> kIds{1, 2, 3};

void begin(OneShard& one) {
  CHECK(one.join(7) == 0);
  one.make_tables();
  one.sync();
}
void push(OneShard& one, int times) {
  for (int time = 0; time < times; ++time) {
    one.push(kIds, 1.0f);
    one.sync();
  }
}
// Of these two tables and so many pushes every request was done once.
void check_has(const ps::LogFolderOptions& options, std::uint64_t pushes) {
  const Folder elsewhere;
  OneShard expected(elsewhere.options("none"));
  begin(expected);
  push(expected, static_cast<int>(pushes));
  OneShard one(options);
  CHECK(one.join(7) == 2 + pushes);
  CHECK((one.rows(kIds) == expected.rows(kIds)));
}

TEST_CASE("with a sync before every answer a loss of power takes nothing that was acknowledged") {
  const Folder folder;
  PowerCut power(folder.shard());
  {
    OneShard one(folder.options("always"));
    begin(one);
    push(one, 3);
    one.push(kIds, 1.0f);  // Nobody was told of this one.
    power.come();
  }
  check_has(folder.options("always"), 3);
}

TEST_CASE("what a restarted server answers by is on its disk, whoever has written it") {
  for (const char* policy : {"always", "50 ms"}) {
    for (const std::uint64_t most_log_bytes : {1u << 30, 600u}) {
      CAPTURE(policy);
      CAPTURE(most_log_bytes);
      const Folder folder;
      PowerCut power(folder.shard());
      {  // No sync of it: as of the last batch, where a kill comes before that.
        OneShard one(folder.options("none", most_log_bytes));
        begin(one);
        push(one, 9);
      }
      check_has(folder.options(policy), 9);
      power.come();
      check_has(folder.options(policy), 9);
    }
  }
}

TEST_CASE("what a failed sync has left in memory is written again by the next start") {
  const Folder folder;
  PowerCut power(folder.shard());
  {
    OneShard one(folder.options("always"));
    begin(one);
    push(one, 2);
    power.fail_next_sync();
    CHECK_THROWS_AS(push(one, 1), DeviceError);
  }
  check_has(folder.options("always"), 3);
  power.come();
  check_has(folder.options("always"), 3);
}

}  // namespace
}  // namespace gradring::testing::log_power_test
