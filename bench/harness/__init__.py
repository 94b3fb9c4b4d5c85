"""The measuring half of bench/compare. The suites, what is measured, stand in bench/suites/.

model     what a suite hands in: groups of subjects, each of which can be measured
sampling  runs them interleaved, each sample bracketed by samples of the reference
records   turns samples into ratios and JSON records
report, plot   what a person sees
process, machine, build   children, cores, programs and virtual environments
echo      TCP echo servers as subjects, for the suites that drive one
"""
