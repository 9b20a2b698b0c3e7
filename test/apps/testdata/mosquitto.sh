printf 'listener 1883 0.0.0.0\nallow_anonymous true\n' >/tmp/mosquitto.conf
exec mosquitto -c /tmp/mosquitto.conf
