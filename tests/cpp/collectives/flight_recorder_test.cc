// The flight recorder of communicators whose ranks are threads: it tells what runs and what waits,
// also from a thread that is in no call, and leaves a file behind when something fails.
#include "collectives/records/flight_recorder.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "support/collectives/operations.h"
#include "support/run_ranks.h"

namespace gradring::testing::flight_recorder_test {
namespace {

using collectives::Communicator;
using Ints = std::vector<std::int64_t>;

constexpr TransportMode kModes[] = {TransportMode::kTcp, TransportMode::kShm};

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::string report_of(Communicator& comm) {
  return comm.recorder().report({});
}

// A folder of this test that goes with it.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "gradring-test-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~Folder() { std::filesystem::remove_all(path); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string read(const std::string& name) const {
    std::ifstream file(path / name);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }

  std::filesystem::path path;
};

TEST_CASE("the record shows the operation that runs, and whom it waits for") {
  for (const TransportMode mode : kModes) {
    std::atomic<bool> has_seen{false};
    run_ranks({.ranks = 2, .mode = mode}, [&](Communicator& comm) {
      Ints data(10, 1);
      all_reduce(comm, data);
      if (comm.rank() == 1) {
        while (!has_seen) std::this_thread::yield();
        all_reduce(comm, data);
        return;
      }
      std::thread waiting([&] { all_reduce(comm, data); });
      // It shows up when its wait gets long; the first one may have waited as long, and ended.
      const auto is_seen = [&](const std::string& text) {
        return contains(text, "\"started\"") && contains(text, "\"awaited\":1}]");
      };
      while (!is_seen(report_of(comm))) std::this_thread::yield();
      const std::string text = report_of(comm);
      CHECK(contains(text, "{\"seq\":1,\"op\":\"all_reduce\",\"state\":\"finished\""));
      CHECK(contains(text,
                     "{\"seq\":2,\"op\":\"all_reduce\",\"state\":\"started\","
                     "\"dtype\":\"int64\",\"count\":10,\"reduce_op\":\"sum\",\"begin\":"));
      has_seen = true;
      waiting.join();
      CHECK(!contains(report_of(comm), "started"));
    });
  }
}

TEST_CASE("the record shows what waits in the queue, and messages with their other end") {
  std::atomic<bool> has_seen{false};
  run_ranks({.ranks = 2}, [&](Communicator& comm) {
    Ints data(10, 1);
    if (comm.rank() == 1) {
      while (!has_seen) std::this_thread::yield();
      for (int i = 0; i < 3; ++i) all_reduce(comm, data);
      send(comm, data, 0, 5);
      return;
    }
    std::vector<std::shared_ptr<collectives::Work>> works;
    for (int i = 0; i < 3; ++i)
      works.push_back(comm.submit(operation_on(OpKind::kAllReduce, data), kPlenty));
    Ints received(10);  // The reductions write to the other one meanwhile.
    const auto wanted = message(true, 1, 5, received);
    comm.point_to_point().start(wanted, true);
    while (!contains(report_of(comm), "\"state\":\"started\"")) std::this_thread::yield();
    const std::string text = report_of(comm);
    CHECK(contains(text, "{\"op\":\"all_reduce\",\"state\":\"queued\""));
    CHECK(
        contains(text, "{\"op\":\"recv\",\"state\":\"started\",\"dtype\":\"int64\",\"count\":10"));
    CHECK(contains(text, "\"to_receive\":80,\"peer\":1,\"tag\":5}"));
    has_seen = true;
    for (const auto& work : works) comm.wait(*work, kPlenty);
    comm.point_to_point().wait(wanted, kPlenty);
    CHECK(contains(report_of(comm), "\"received\":80,\"to_receive\":80,\"peer\":1,\"tag\":5}"));
  });
}

TEST_CASE("payload over links is counted, up to the last byte") {
  run_ranks({.ranks = 2, .mode = TransportMode::kTcp}, [](Communicator& comm) {
    Ints data(100'000, 1);
    all_reduce(comm, data);
    CHECK(contains(report_of(comm),
                   "\"sent\":800000,\"to_send\":800000,\"received\":800000,\"to_receive\":800000"));
  });
}

TEST_CASE("a failure leaves a file that tells it on every rank, also where no call was running") {
  for (const TransportMode mode : kModes) {
    const Folder folder;
    Job job{.ranks = 3, .mode = mode, .timeout = Millis{300}};
    job.record.directory = (folder.path / "{job}").string();
    const std::vector<Failure> ends = end_of_ranks(job, [&](Communicator& comm) {
      Ints data(10, 1);
      barrier(comm);
      if (comm.rank() < 2) all_reduce(comm, data, Millis{300});
      while (!comm.is_closed()) std::this_thread::yield();
    });
    CHECK(ends[0].kind == ErrorKind::kTimedOut);
    REQUIRE(contains(ends[0].note, "/rank-0.json"));
    CHECK(contains(ends[1].note, "/rank-1.json"));
    const auto directory = std::filesystem::directory_iterator(folder.path)->path();
    for (const int rank : {0, 1}) {
      const std::string text =
          folder.read((directory.filename() / ("rank-" + std::to_string(rank) + ".json")).string());
      CHECK(contains(text, "\"failure\":{\"kind\":\"TimedOut\""));
      CHECK(contains(text, "{\"seq\":2,\"op\":\"all_reduce\",\"state\":\"failed\""));
    }
    // The third rank was in no call: its monitor had it written, at the latest when it left.
    const std::string text = folder.read((directory.filename() / "rank-2.json").string());
    CHECK(contains(text, "\"failure\":{\"kind\":\"TimedOut\""));
    CHECK(contains(text, "{\"seq\":1,\"op\":\"barrier\",\"state\":\"finished\""));
    CHECK(!contains(text, "\"seq\":2"));
  }
}

TEST_CASE("with nowhere to write to, a failure is the same without a note") {
  Job job{.ranks = 2};
  job.record.directory = "/proc/nowhere/at/all";
  const std::vector<Failure> ends = end_of_ranks(job, [](Communicator& comm) {
    Ints data(static_cast<std::size_t>(comm.rank()) + 1, 1);
    all_reduce(comm, data);
  });
  for (const Failure& end : ends) {
    CHECK(end.kind == ErrorKind::kMismatch);
    CHECK(end.note.empty());
  }
}

TEST_CASE("recording can be switched off") {
  Job job{.ranks = 2};
  job.record.operations = 0;
  run_ranks(job, [](Communicator& comm) {
    Ints data(10, 1);
    all_reduce(comm, data);
    send(comm, data, comm.rank());
    recv(comm, data, comm.rank());
    CHECK(contains(report_of(comm), "\"operations\":[],\"messages\":[]"));
  });
}

TEST_CASE("the trace is written when the last communicator closes, with rank 0's clock in it") {
  const Folder folder;
  Job job{.ranks = 2};
  job.record.trace_directory = folder.path.string();
  auto options = options_for(job);
  options[1].host_label = "another";  // So that the clocks are compared by asking.
  const auto errors = run_threads(2, [&](int rank) {
    const auto comm = Communicator::join(options[static_cast<std::size_t>(rank)]);
    const auto child = comm->split(0, 0, kPlenty);
    Ints data(1000, 1);
    all_reduce(*child, data);
    barrier(*comm);
    comm->close();
    CHECK(!std::filesystem::exists(folder.path / str("rank-", rank, ".trace.json")));
    child->close();
  });
  for (const auto& error : errors) CHECK(error == nullptr);
  const std::string own = folder.read("rank-0.trace.json");
  CHECK(contains(own, "\"name\":\"all_reduce\",\"ph\":\"X\",\"pid\":0"));
  CHECK(contains(own, "\"offset\":0,\"error\":0}"));
  CHECK(contains(own, "\"lost\":0"));
  CHECK(contains(folder.read("rank-1.trace.json"), "\"name\":\"barrier\""));
}

TEST_CASE("a communicator that is closed is told of for a while, and then forgotten") {
  run_ranks({.ranks = 2}, [](Communicator& comm) {
    for (int i = 0; i < 10; ++i) {
      const auto child = comm.split(0, 0, kPlenty);
      barrier(*child);
      child->close();
    }
    const std::string text = report_of(comm);
    std::size_t closed = 0;
    for (std::size_t at = 0; (at = text.find("\"is_closed\":true", at)) != std::string::npos; ++at)
      ++closed;
    CHECK(closed > 0);
    CHECK(closed < 10);
  });
}

}  // namespace
}  // namespace gradring::testing::flight_recorder_test
