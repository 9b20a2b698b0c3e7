exec redis-server --bind 0.0.0.0 --protected-mode no --save '' --dir /tmp
