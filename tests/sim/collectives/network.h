// Network: who runs, who can be reached, and the connections between them: what processes, kernels
// and switches are to real ranks. Connections are MemoryWires; a connection that is being made
// waits until the other side's monitor lets it in.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "base/types.h"
#include "sim/dice.h"
#include "transport/links/memory_link.h"

namespace gradring::sim {

struct Process {
  bool has_ended = false;
  int freezes = 0;  // Several faults may overlap.
  int cuts = 0;
  bool runs() const { return !has_ended && freezes == 0; }
};

// As a communicator id.
inline constexpr std::uint64_t kControl = 0;
inline constexpr std::uint64_t kProbe = ~std::uint64_t{0};  // Whether anybody listens.

struct Attempt {  // A connection that is being made.
  enum class State : std::uint8_t { kWaiting, kRefused, kConnected };
  Rank from = -1;
  Rank to = -1;
  std::uint64_t communicator = kControl;
  Time arrives{};
  State state = State::kWaiting;
  Time answered{};
  std::unique_ptr<transport::Link> near;
  std::unique_ptr<transport::Link> far;
};

class Network {
 public:
  Network(Rank ranks, std::uint64_t seed)
      : dice_(seed), processes_(static_cast<std::size_t>(ranks)) {}

  transport::MemoryWeather weather;

  Process& process(Rank rank) { return processes_[static_cast<std::size_t>(rank)]; }
  Time now() const { return weather.now; }

  // Asks for a connection, or for one of several streams. The script's seed is drawn here; it says
  // what becomes of the first of them.
  Attempt* connect(Rank from, Rank to, std::uint64_t communicator,
                   const transport::MemoryScript& script, std::size_t streams = 1);
  // Waiting while nothing has come back. Once answered, the attempt may be given up.
  Attempt::State answer(const Attempt& attempt) const;
  void give_up(Attempt* attempt);
  // What has arrived at a rank's door.
  std::vector<Attempt*> arrived(Rank at);
  std::unique_ptr<transport::Link> accept(Attempt& attempt);

  // A connection that exists already when the simulation starts.
  std::pair<std::unique_ptr<transport::MemoryLink>, std::unique_ptr<transport::MemoryLink>> join(
      Rank a, Rank b, std::uint64_t communicator, transport::MemoryScript script);

  void end(Rank rank, bool is_killed);  // Its connections close, or are reset.
  void cut_off(Rank rank, int cuts);    // 1: one more, -1: one less; as the next.
  void cut_pair(Rank a, Rank b, int cuts);
  void reset(Rank a, Rank b, std::uint64_t communicator);
  bool is_broken(Rank a, Rank b, std::uint64_t communicator) const;

  // When something next arrives at a rank that runs.
  Time next_event() const;

 private:
  struct Cable {
    Rank a = -1;
    Rank b = -1;
    std::uint64_t communicator = kControl;
    std::shared_ptr<transport::MemoryWire> wire;
    bool joins(Rank one, Rank other) const {
      return (a == one && b == other) || (a == other && b == one);
    }
  };

  std::pair<std::unique_ptr<transport::Link>, std::unique_ptr<transport::Link>> join_all(
      Rank a, Rank b, std::uint64_t communicator, transport::MemoryScript script,
      std::size_t streams);
  Time after_a_delay();
  bool reach_each_other(Rank a, Rank b) const;
  void refresh();
  void refuse_at_ended();  // The kernel of a host that is there answers for a process that is not.

  Dice dice_;
  std::vector<Process> processes_;
  std::vector<Cable> cables_;
  std::list<Attempt> attempts_;
  std::map<std::pair<Rank, Rank>, int> pair_cuts_;
};

}  // namespace gradring::sim
