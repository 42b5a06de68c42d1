// The bytes of checkpoint files for Python, which moves them between servers and file systems:
// sealing and checking blocks, checksums, and what a table's spec says. gradring/ps/saved has the
// rest.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <utility>
#include <vector>

#include "base/crc32c.h"
#include "bind/arrays.h"
#include "bind/gil.h"
#include "bind/module.h"
#include "ps/log/snapshot.h"
#include "ps/protocol/payloads.h"

namespace gradring::bind {
namespace {

namespace py = pybind11;

std::span<const std::byte> bytes_of(const Buffer& buffer) {
  return {buffer.data(), static_cast<std::size_t>(buffer.count())};
}
Buffer as_bytes(const py::handle& object) {
  return {object, static_cast<int>(DType::kUInt8), false};
}
py::bytes to_python(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::uint32_t crc32c_of(const py::handle& object, std::uint32_t before) {
  const Buffer buffer = as_bytes(object);
  const WithoutGil release;
  return crc32c(bytes_of(buffer), before);
}

// What belongs into a file around the pieces of one shard.
class FileSealer {
 public:
  py::bytes begin(std::uint32_t shard, std::uint32_t shards, std::uint64_t cut,
                  std::uint64_t base) {
    Bytes block;
    ps::put_header(block, {shard, shards, cut, base});
    sealer_.seal(block);
    return to_python(block);
  }
  // What stands before and behind this piece.
  std::pair<py::bytes, py::bytes> around(const py::handle& object) {
    const Buffer piece = as_bytes(object);
    std::vector<std::byte> head;
    std::vector<std::byte> fill;
    {
      const WithoutGil release;
      sealer_.seal_piece(bytes_of(piece), head, fill);
    }
    return {to_python(head), to_python(fill)};
  }
  py::bytes end() {
    Bytes block;
    sealer_.finish(block);
    return to_python(block);
  }
  std::uint32_t crc() const { return sealer_.crc(); }
  std::uint64_t bytes() const { return sealer_.bytes(); }

 private:
  ps::Sealer sealer_;
};

class FileChecker {
 public:
  // Checks the whole blocks at the front of the object. (how many bytes those are, how many it
  // takes to make the next block whole, where in the object the pieces are: begin, end.)
  py::tuple take(const py::handle& object) {
    const Buffer buffer = as_bytes(object);
    std::size_t whole = 0;
    std::size_t needed = 0;
    std::vector<std::pair<std::size_t, std::size_t>> pieces;
    {
      const WithoutGil release;
      const auto bytes = bytes_of(buffer);
      whole = ps::whole_blocks(bytes, needed);
      checker_.check(bytes.first(whole));
      std::span<const std::byte> rest = bytes.first(whole);
      ps::Block block;
      while (ps::next_block(rest, block)) {
        if (block.kind != ps::BlockKind::kPiece) continue;
        const auto begin = static_cast<std::size_t>(block.payload.data() - bytes.data());
        pieces.emplace_back(begin, begin + block.payload.size());
      }
    }
    return py::make_tuple(whole, needed, pieces);
  }
  void end() const { checker_.finish(); }
  // (shard, shards, cut, base), or None before it has come.
  py::object header() const {
    if (!checker_.has_header()) return py::none();
    const ps::SnapshotHeader& header = checker_.header();
    return py::make_tuple(header.shard, header.shards, header.cut, header.base);
  }
  std::uint32_t crc() const { return checker_.crc(); }
  std::uint64_t bytes() const { return checker_.bytes(); }

 private:
  ps::Checker checker_;
};

// What readers of a table's rows have to know, from the bytes of its spec.
py::dict read_spec(const py::handle& object) {
  const Buffer buffer = as_bytes(object);
  wire::Reader in(bytes_of(buffer));
  ps::SavedSpec saved = ps::get_saved_spec(in);
  ps::TableSpec& spec = saved.made;
  spec.rule = saved.rule;
  py::list state;
  kernels::StateField fields[kernels::kMaxStateFields];
  const bool is_dense = spec.kind == ps::TableKind::kDense;
  const std::size_t dim = is_dense ? std::size_t{1} : std::size_t{spec.dim};
  const std::size_t count = kernels::state_fields(spec.rule, dim, fields);
  for (std::size_t i = 0; i < count; ++i)
    state.append(py::make_tuple(std::string(fields[i].name), fields[i].floats));
  py::dict made;
  made["name"] = spec.name;
  made["kind"] = is_dense ? "dense" : "sparse";
  made["dim"] = spec.dim;
  made["count"] = spec.count;
  made["rule"] = std::string(name(spec.rule.kind));
  made["lr"] = spec.rule.lr;
  made["seed"] = spec.seed;
  made["state"] = state;
  return made;
}

}  // namespace

void register_ps_files(py::module_& module) {
  module.def("crc32c", &crc32c_of, py::arg("data"), py::arg("before") = 0);
  module.def("ps_read_spec", &read_spec, py::arg("data"));
  py::class_<FileSealer>(module, "PsFileSealer")
      .def(py::init())
      .def("begin", &FileSealer::begin, py::arg("shard"), py::arg("shards"), py::arg("cut"),
           py::arg("base"))
      .def("around", &FileSealer::around, py::arg("piece"))
      .def("end", &FileSealer::end)
      .def_property_readonly("crc32c", &FileSealer::crc)
      .def_property_readonly("bytes", &FileSealer::bytes);
  py::class_<FileChecker>(module, "PsFileChecker")
      .def(py::init())
      .def("take", &FileChecker::take, py::arg("data"))
      .def("end", &FileChecker::end)
      .def_property_readonly("header", &FileChecker::header)
      .def_property_readonly("crc32c", &FileChecker::crc)
      .def_property_readonly("bytes", &FileChecker::bytes);
}

}  // namespace gradring::bind
