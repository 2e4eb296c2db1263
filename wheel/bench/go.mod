module github.com/carillon-timers/carillon/wheel/bench

go 1.26.0

replace github.com/carillon-timers/carillon => ../..

require github.com/carillon-timers/carillon v0.0.0-00010101000000-000000000000

require github.com/RussellLuo/timingwheel v0.0.0-20220218152713-54845bda3108
