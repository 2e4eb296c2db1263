package recur

// The Gregorian calendar, in days since 1970-01-01. Package time knows it too, but works out all fields of a time where a
// sum is enough.

const (
	secondsPerDay = 24 * 3600
	maxYear       = 9999
)

// civil returns the date of a day.
func civil(days int64) (year, month, day int) {
	z := days + 719_468 // from 0000-03-01: leap days are the last of their year
	era := floorDiv(z, 146_097)
	dayOfEra := z - era*146_097
	yearOfEra := (dayOfEra - dayOfEra/1460 + dayOfEra/36_524 - dayOfEra/146_096) / 365
	dayOfYear := dayOfEra - (365*yearOfEra + yearOfEra/4 - yearOfEra/100)
	shifted := (5*dayOfYear + 2) / 153 // 0 is March
	day = int(dayOfYear - (153*shifted+2)/5 + 1)
	month = int(shifted) + 3
	year = int(yearOfEra + era*400)
	if month > 12 {
		month, year = month-12, year+1
	}
	return year, month, day
}

// daysBefore returns the first day of a month.
func daysBefore(year, month int) int64 {
	y, m := int64(year), int64(month)-3
	if m < 0 {
		y, m = y-1, m+12
	}
	era := floorDiv(y, 400)
	yearOfEra := y - era*400
	dayOfYear := (153*m + 2) / 5
	return era*146_097 + yearOfEra*365 + yearOfEra/4 - yearOfEra/100 + dayOfYear - 719_468
}

func monthDays(year, month int) int {
	switch month {
	case 2:
		if year%4 == 0 && (year%100 != 0 || year%400 == 0) {
			return 29
		}
		return 28
	case 4, 6, 9, 11:
		return 30
	}
	return 31
}
