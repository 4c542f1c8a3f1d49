#include "hub/config.h"

#include "base/check.h"
#include "base/escaped.h"
#include "checkpoint/folders.h"
#include "sys/bounded_json.h"
#include "sys/plain_file.h"

#include <cmath>
#include <utility>

namespace lockstep::hub {
namespace {

constexpr std::uint64_t most_config_bytes = 4 << 20;
constexpr std::int64_t most_size = std::int64_t{1} << 31;

// The values of one object of config.json. A key with the value null counts as missing, because
// transformers writes null for options that it does not use.
class Fields {
 public:
  Fields(std::string path, nlohmann::json object)
      : path_(std::move(path)), object_(std::move(object)) {
    if (!object_.is_object()) fail(formatted("expected an object, found {}", shown(object_)));
  }

  [[nodiscard]] bool has(const char* key) const {
    return object_.contains(key) && !object_.at(key).is_null();
  }

  [[nodiscard]] std::int64_t size(const char* key) const {
    const nlohmann::json& value = at(key);
    if (!value.is_number_integer() || value < 1 || value > most_size)
      fail(formatted("{}: expected an integer from 1 to {}, found {}", key, most_size,
                     shown(value)));
    return value.get<std::int64_t>();
  }
  [[nodiscard]] std::int64_t size(const char* key, std::int64_t otherwise) const {
    return has(key) ? size(key) : otherwise;
  }

  [[nodiscard]] double positive(const char* key) const {
    const nlohmann::json& value = at(key);
    if (!value.is_number() || !(value.get<double>() > 0) || !std::isfinite(value.get<double>()))
      fail(formatted("{}: expected a number above 0, found {}", key, shown(value)));
    return value.get<double>();
  }
  [[nodiscard]] double positive(const char* key, double otherwise) const {
    return has(key) ? positive(key) : otherwise;
  }

  // Returns the number, which must be at least 1: the base or a factor of angles, which overflow if
  // it is very small.
  [[nodiscard]] double at_least_1(const char* key) const {
    if (positive(key) < 1)
      fail(formatted("{}: expected a number of at least 1, found {}", key, shown(at(key))));
    return positive(key);
  }
  [[nodiscard]] double at_least_1(const char* key, double otherwise) const {
    return has(key) ? at_least_1(key) : otherwise;
  }

  [[nodiscard]] bool flag(const char* key, bool otherwise) const {
    if (!has(key)) return otherwise;
    const nlohmann::json& value = at(key);
    if (!value.is_boolean())
      fail(formatted("{}: expected true or false, found {}", key, shown(value)));
    return value.get<bool>();
  }

  [[nodiscard]] std::string text(const char* key) const {
    const nlohmann::json& value = at(key);
    if (!value.is_string()) fail(formatted("{}: expected a string, found {}", key, shown(value)));
    return value.get<std::string>();
  }
  [[nodiscard]] std::string text(const char* key, const char* otherwise) const {
    return has(key) ? text(key) : otherwise;
  }

  [[nodiscard]] bool are_equal(const char* key, const char* other) const {
    return at(key) == at(other);
  }
  void check_empty(const char* key) const {
    if (has(key) && !at(key).empty())
      fail(formatted("{}: expected an empty value, found {}", key, shown(at(key))));
  }
  // Checks that every item of a list of strings is `expected`.
  void check_all_are(const char* key, const char* expected) const {
    if (!has(key)) return;
    for (const nlohmann::json& item : at(key))
      if (item != expected)
        fail(formatted("{}: expected {} only, found {}", key, expected, shown(item)));
  }

  [[nodiscard]] Fields object(const char* key) const {
    return {formatted("{}: {}", path_, key), at(key)};
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw BadInput(formatted("{}: {}", path_, what));
  }

 private:
  [[nodiscard]] const nlohmann::json& at(const char* key) const {
    if (!has(key)) fail(formatted("has no {}", key));
    return object_.at(key);
  }

  static std::string shown(const nlohmann::json& value) {
    if (value.is_structured()) return value.is_array() ? "a list" : "an object";
    return escaped(value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), 80);
  }

  std::string path_;
  nlohmann::json object_;
};

// Checks the keys that all models of transformers share: transformers prefers the values of these
// keys to values under GPT-2's own names.
void check_other_names(const Fields& fields) {
  for (const auto& [other, own] : {std::pair{"num_hidden_layers", "n_layer"},
                                   {"num_attention_heads", "n_head"},
                                   {"hidden_size", "n_embd"},
                                   {"max_position_embeddings", "n_positions"}})
    if (fields.has(other) && fields.has(own) && fields.size(other) != fields.size(own))
      fields.fail(formatted("{}: expected {}, as in {}, found {}", other, fields.size(own), own,
                            fields.size(other)));
  fields.check_empty("pruned_heads");
}

models::GptOptions gpt_options(const Fields& fields) {
  check_other_names(fields);
  models::GptOptions options{
      .layers = fields.size("n_layer"),
      .heads = fields.size("n_head"),
      .hidden_size = fields.size("n_embd"),
      .context_length = fields.size("n_positions", fields.size("n_ctx", 1024)),
      .vocabulary = fields.size("vocab_size"),
      .bias = true};
  const std::string activation = fields.text("activation_function", "gelu_new");
  options.tanh_gelu = activation == "gelu_new" || activation == "gelu_pytorch_tanh";
  if (!options.tanh_gelu && activation != "gelu")
    fields.fail(
        formatted("activation_function: expected gelu_new, gelu_pytorch_tanh or gelu, found '{}'",
                  escaped(activation, 80)));
  if (fields.size("n_inner", 4 * options.hidden_size) != 4 * options.hidden_size)
    fields.fail(formatted("n_inner: expected {}, four times n_embd, found {}",
                          4 * options.hidden_size, fields.size("n_inner")));
  if (fields.positive("layer_norm_epsilon", 1e-5) != 1e-5)
    fields.fail(formatted("layer_norm_epsilon: expected 1e-5, found {}",
                          fields.positive("layer_norm_epsilon")));
  if (!fields.flag("tie_word_embeddings", true) || !fields.flag("scale_attn_weights", true) ||
      fields.flag("scale_attn_by_inverse_layer_idx", false) ||
      fields.flag("add_cross_attention", false))
    fields.fail(
        "expected GPT-2's values of tie_word_embeddings, scale_attn_weights, "
        "scale_attn_by_inverse_layer_idx and add_cross_attention (true, true, false, false)");
  return options;
}

models::RotaryScaling scaling_in(const Fields& fields) {
  // Models with different kinds of layers have one scaling per kind, which is not supported.
  for (const char* layers : {"full_attention", "sliding_attention", "chunked_attention"})
    if (fields.has(layers))
      fields.fail(formatted("expected one scaling for all layers, found one of {}", layers));
  if (!fields.has("rope_type") && !fields.has("type") && fields.has("factor"))
    fields.fail("has a factor, but no rope_type that says how to use it");
  const std::string kind = fields.text("rope_type", fields.text("type", "default").c_str());
  if (kind == "default") return {};
  if (kind == "linear") return {.factor = fields.at_least_1("factor")};
  if (kind != "llama3")
    fields.fail(
        formatted("rope_type: expected default, linear or llama3, found '{}'", escaped(kind, 80)));
  models::RotaryScaling::ByWave waves{
      .low_frequency_factor = fields.positive("low_freq_factor"),
      .high_frequency_factor = fields.positive("high_freq_factor"),
      .trained_tokens = fields.positive("original_max_position_embeddings")};
  if (waves.high_frequency_factor <= waves.low_frequency_factor)
    fields.fail(formatted("high_freq_factor: expected more than low_freq_factor {}, found {}",
                          waves.low_frequency_factor, waves.high_frequency_factor));
  return {.factor = fields.at_least_1("factor"), .by_wave = waves};
}

void check_whole_rotation(const Fields& fields) {
  if (fields.positive("partial_rotary_factor", 1) != 1)
    fields.fail(formatted("partial_rotary_factor: expected 1, found {}",
                          fields.positive("partial_rotary_factor")));
}

// Throws if attention is limited to a window: versions of transformers disagree on whether a Llama
// with these keys attends to all tokens.
void check_sees_all(const Fields& fields, std::int64_t block) {
  if (fields.flag("use_sliding_window", true) && fields.size("sliding_window", block) < block)
    fields.fail(
        formatted("sliding_window: expected null or at least max_position_embeddings, {}, found {}",
                  block, fields.size("sliding_window")));
  fields.check_all_are("layer_types", "full_attention");
}

// Some versions of transformers store positions in rope_theta and rope_scaling, others in
// rope_parameters. If a file has both, the version decides which one is used, so both must have the
// same values.
void read_positions(const Fields& fields, models::LlamaOptions& options) {
  check_whole_rotation(fields);
  if (fields.has("rope_scaling") && fields.has("rope_parameters") &&
      !fields.are_equal("rope_scaling", "rope_parameters"))
    fields.fail("rope_scaling and rope_parameters differ");
  options.rotary_base = fields.at_least_1("rope_theta", 10000);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!fields.has(key)) continue;
    const Fields positions = fields.object(key);
    check_whole_rotation(positions);
    options.rotary_scaling = scaling_in(positions);
    const double base = positions.at_least_1("rope_theta", options.rotary_base);
    if (fields.has("rope_theta") && base != options.rotary_base)
      positions.fail(
          formatted("rope_theta: expected {}, as at the top level of config.json, found {}",
                    options.rotary_base, base));
    options.rotary_base = base;
  }
  const auto& waves = options.rotary_scaling.by_wave;
  if (constexpr const char* trained = "original_max_position_embeddings";
      waves && fields.positive(trained, waves->trained_tokens) != waves->trained_tokens)
    fields.fail(formatted("{}: expected {}, as in the scaling of positions, found {}", trained,
                          waves->trained_tokens, fields.positive(trained)));
}

models::LlamaOptions llama_options(const Fields& fields) {
  models::LlamaOptions options{.layers = fields.size("num_hidden_layers"),
                               .heads = fields.size("num_attention_heads"),
                               .hidden_size = fields.size("hidden_size"),
                               .intermediate_size = fields.size("intermediate_size"),
                               .context_length = fields.size("max_position_embeddings", 2048),
                               .vocabulary = fields.size("vocab_size"),
                               .norm_epsilon = fields.positive("rms_norm_eps", 1e-6),
                               .attention_bias = fields.flag("attention_bias", false),
                               .feed_forward_bias = fields.flag("mlp_bias", false),
                               .tied = fields.flag("tie_word_embeddings", false)};
  options.key_value_heads = fields.size("num_key_value_heads", options.heads);
  options.head_width = fields.size("head_dim", options.hidden_size / options.heads);
  const std::string activation = fields.text("hidden_act", "silu");
  if (activation != "silu")
    fields.fail(formatted("hidden_act: expected silu, found '{}'", escaped(activation, 80)));
  read_positions(fields, options);
  check_sees_all(fields, options.context_length);
  return options;
}

std::string text_of(const nlohmann::ordered_json& config) { return config.dump(2) + "\n"; }

// Writes null for both special tokens. Otherwise transformers would treat ordinary tokens as the
// begin and end of a text.
void name_no_special_tokens(nlohmann::ordered_json& config) {
  config["bos_token_id"] = nullptr;
  config["eos_token_id"] = nullptr;
}

}  // namespace

ModelOptions read_config(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "config.json";
  const std::string text = sys::read_plain_file(path, most_config_bytes);
  const Fields fields(path.string(),
                      checkpoint::in_file(path, [&] { return sys::parse_json(text); }));
  for (const char* key : {"quantization_config", "compression_config"})
    if (fields.has(key))
      fields.fail(formatted("{}: expected weights in floating point, found quantised ones", key));
  const std::string type = fields.text("model_type");
  if (type == "gpt2") return gpt_options(fields);
  if (type == "llama") return llama_options(fields);
  fields.fail(formatted("model_type: expected gpt2 or llama, found '{}'", escaped(type, 80)));
}

std::string config_text(const models::GptOptions& options) {
  nlohmann::ordered_json config{{"architectures", {"GPT2LMHeadModel"}},
                                {"model_type", "gpt2"},
                                {"n_layer", options.layers},
                                {"n_head", options.heads},
                                {"n_embd", options.hidden_size},
                                {"n_positions", options.context_length},
                                {"vocab_size", options.vocabulary},
                                {"activation_function", options.tanh_gelu ? "gelu_new" : "gelu"},
                                {"layer_norm_epsilon", 1e-5},
                                {"resid_pdrop", options.dropout},
                                {"embd_pdrop", options.dropout},
                                {"attn_pdrop", options.dropout},
                                {"tie_word_embeddings", true},
                                {"torch_dtype", "float32"}};
  // If no token is named, transformers uses the last token of GPT-2's own vocabulary for both.
  constexpr std::int64_t end_of_text = 50256;
  if (options.vocabulary <= end_of_text) name_no_special_tokens(config);
  return text_of(config);
}

std::string config_text(const models::LlamaOptions& options) {
  nlohmann::ordered_json config{{"architectures", {"LlamaForCausalLM"}},
                                {"model_type", "llama"},
                                {"num_hidden_layers", options.layers},
                                {"num_attention_heads", options.heads},
                                {"num_key_value_heads", options.key_value_heads},
                                {"hidden_size", options.hidden_size},
                                {"head_dim", options.head_width},
                                {"intermediate_size", options.intermediate_size},
                                {"max_position_embeddings", options.context_length},
                                {"vocab_size", options.vocabulary},
                                {"rope_theta", options.rotary_base},
                                {"rms_norm_eps", options.norm_epsilon},
                                {"hidden_act", "silu"},
                                {"attention_bias", options.attention_bias},
                                {"mlp_bias", options.feed_forward_bias},
                                {"tie_word_embeddings", options.tied},
                                {"torch_dtype", "float32"}};
  name_no_special_tokens(config);
  const models::RotaryScaling& scaling = options.rotary_scaling;
  if (scaling.by_wave)
    config["rope_scaling"] = {{"rope_type", "llama3"},
                              {"factor", scaling.factor},
                              {"low_freq_factor", scaling.by_wave->low_frequency_factor},
                              {"high_freq_factor", scaling.by_wave->high_frequency_factor},
                              {"original_max_position_embeddings",
                               static_cast<std::int64_t>(scaling.by_wave->trained_tokens)}};
  else if (scaling.factor != 1)
    config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", scaling.factor}};
  return text_of(config);
}

}  // namespace lockstep::hub
