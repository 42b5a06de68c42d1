// The flight recorder: what a rank's communicators were doing lately, as one JSON text, written to
// a file when something fails and handed to whoever asks (docs/flight_recorder.md has the format).
// One a rank, shared by its communicators. Reading needs no lock that is held while an operation
// runs, so it works while every thread of this process is stuck in a wait. Callable from any
// thread.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/record.h"
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

class FlightRecorder {
 public:
  FlightRecorder(const transport::World& world, RecordOptions options);

  std::shared_ptr<Logbook> open(std::shared_ptr<transport::Group> group, Logbook::Queue queue);
  // The communicator is over. Its last operations are kept for a while.
  void close(const std::shared_ptr<Logbook>& logbook);

  // `failure` may be none: somebody just asks.
  std::string report(const Failure& failure) const;
  // Writes the report; the file's name, or "" where there is nowhere to write it to. Never throws.
  std::string save(const Failure& failure) noexcept;

 private:
  RecordOptions options_;
  std::string job_;
  Rank rank_;
  std::vector<std::string> addresses_;  // By world rank.

  mutable std::mutex mutex_;  // Guards the next two and the logbooks' queues.
  std::vector<std::shared_ptr<Logbook>> logbooks_;
  TickScale scale_;
  std::mutex file_mutex_;  // One writes at a time.
};

}  // namespace gradring::collectives
