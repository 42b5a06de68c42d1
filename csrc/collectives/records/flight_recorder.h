// The flight recorder: what a rank's communicators were doing lately, as one JSON text, written to
// a file when something fails and handed to whoever asks (docs/flight_recorder.md has the format).
// One a rank, shared by its communicators. Reading needs no lock that is held while an operation
// runs, so it works while every thread of this process is stuck in a wait. Callable from any
// thread.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/record.h"
#include "collectives/records/trace_text.h"
#include "transport/world.h"

namespace gradring::collectives {

class FlightRecorder;

// One communicator's part. The rings have one writer at a time: collectives under the drive lock,
// messages under PointToPoint's.
class Logbook {
 public:
  using Queue = std::function<std::vector<OperationRecord>()>;

  Logbook(FlightRecorder& recorder, std::shared_ptr<transport::Group> group, std::size_t size,
          Queue queue);

  // Writes the record, and returns `failure` with a note that says where it is.
  Failure noted(Failure failure) const;

  OperationRing collectives;
  OperationRing messages;

 private:
  friend class FlightRecorder;
  FlightRecorder& recorder_;
  std::shared_ptr<transport::Group> group_;
  Queue queue_;  // What waits for its turn. Guarded by the recorder; empty once closed.
};

// What a communicator does, as a number for each: for metrics.
struct Activity {
  std::uint64_t collectives = 0;  // Begun so far.
  std::uint64_t messages = 0;
  std::int64_t under_way_nanos = 0;  // Of the oldest collective that has not ended; 0: none.
};

class FlightRecorder {
 public:
  FlightRecorder(const transport::World& world, RecordOptions options);

  std::shared_ptr<Logbook> open(std::shared_ptr<transport::Group> group, Logbook::Queue queue);
  // The communicator is over. Its last operations are kept for a while.
  void close(const std::shared_ptr<Logbook>& logbook);

  // Whether a trace is made.
  bool traces() const { return !options_.trace_directory.empty(); }
  // Has the world's scribe compare our clock with rank 0's, now and then, if a trace is made.
  static void read_clocks(const std::shared_ptr<FlightRecorder>& recorder, transport::World& world);
  // Writes the trace once the last communicator is closed.
  void finish() noexcept;

  // `failure` may be none: somebody just asks.
  std::string report(const Failure& failure) const;
  // What one of its logbooks says right now.
  Activity activity(const Logbook& logbook) const;
  // Writes the report; the file's name, or "" where there is nowhere to write it to. Never throws.
  std::string save(const Failure& failure) noexcept;

 private:
  // Rank 0's clock, compared with ours; nothing where it could not be.
  void note_clock(const std::optional<transport::ClockOffset>& clock);

  RecordOptions options_;
  std::string job_;
  Rank rank_;
  std::vector<std::string> addresses_;  // By world rank.

  mutable std::mutex mutex_;  // Guards the next three and the logbooks' queues.
  std::vector<std::shared_ptr<Logbook>> logbooks_;
  TickScale scale_;
  std::vector<ClockReading> clock_;
  std::mutex file_mutex_;  // One writes at a time.
};

}  // namespace gradring::collectives
