// Writes one JSON text, value by value. For records that people and scripts read; no parsing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace gradring {

class JsonWriter {
 public:
  // Containers: open, write members, close. A member of an object begins with key().
  JsonWriter& open_object();
  JsonWriter& close_object();
  JsonWriter& open_array();
  JsonWriter& close_array();
  JsonWriter& key(std::string_view name);

  JsonWriter& value(std::string_view text);
  JsonWriter& value(const char* text) { return value(std::string_view(text)); }
  JsonWriter& value(std::int64_t number);
  JsonWriter& value(std::uint64_t number);
  JsonWriter& value(std::int32_t number) { return value(std::int64_t{number}); }
  JsonWriter& value(double number);  // Finite; reads back as the same.
  JsonWriter& value(bool truth);
  JsonWriter& null();
  JsonWriter& micros(std::int64_t nanos);  // As microseconds with three decimals.
  JsonWriter& new_line();  // Between the members of a long list, for the reader's sake.

  template <typename Value>
  JsonWriter& member(std::string_view name, const Value& of) {
    return key(name).value(of);
  }

  std::string take() {
    text_ += '\n';
    return std::move(text_);
  }

 private:
  void separate();

  std::string text_;
  bool needs_comma_ = false;
};

}  // namespace gradring
