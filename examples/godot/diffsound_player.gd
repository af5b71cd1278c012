class_name DiffsoundPlayer
extends AudioStreamPlayer
## Asks a diffsound server for a sound and plays it (Godot 4.2 or later).
##
## Run `diffsound serve` on this machine, add this node to a scene, and call
## [code]await $DiffsoundPlayer.play_prompt("a dog barks")[/code].

## Emitted with one line when the server refuses the request or cannot be reached.
signal failed(message: String)

@export var server := "http://127.0.0.1:8765"
@export_range(0.5, 30.0, 0.5, "suffix:s") var duration := 2.0

var _sounds := {}


## Plays the sound of a prompt. The same prompt and seed are asked for only once.
func play_prompt(prompt: String, seed_number := 0, loop := false) -> void:
	var request := {
		"prompt": prompt,
		"duration": duration,
		"seed": seed_number,
		"loop": loop,
		"format": "ogg",
	}
	var key := JSON.stringify(request)
	if not _sounds.has(key):
		var sound := await _fetch(key)
		if sound == null:
			return
		sound.loop = loop
		_sounds[key] = sound
	stream = _sounds[key]
	play()


func _fetch(body: String) -> AudioStreamOggVorbis:
	var http := HTTPRequest.new()
	add_child(http)
	var headers := ["Content-Type: application/json"]
	var error := http.request(server + "/v1/generate", headers, HTTPClient.METHOD_POST, body)
	if error != OK:
		http.queue_free()
		failed.emit("request failed: " + error_string(error))
		return null
	# result, response code, headers, body
	var response: Array = await http.request_completed
	http.queue_free()
	if response[0] != HTTPRequest.RESULT_SUCCESS:
		failed.emit("no answer from " + server)
		return null
	if response[1] != 200:
		failed.emit(response[3].get_string_from_utf8())
		return null
	return AudioStreamOggVorbis.load_from_buffer(response[3])
